#!/usr/bin/env bash
# What one machine with NVIDIA GPUs can tell, within BUDGET_S seconds, in one results folder:
#
#   1  the gate on one rank, in three dtypes                    verify-<dtype>.json
#   2  NCCL on all its GPUs                                     runs.csv, kind measured
#   3  NCCL between ranks that share one GPU, if it can be had  verify-<dtype>-<n>-ranks-on-one-device.json
#      and between two nodes that do                            nodes-on-one-device.txt
#   4  its products, attentions and passes, as a cluster        cluster.yaml
#   5  our step over the same transformer written by hand       by-hand.txt
#   6  one rank's share of dsp-720m on 64 to 1 ranks            runs.csv, kind one_gpu_share
#
#   usage: [BUDGET_S=540] [FAULTS=all] [DEVICE=cpu] [PYTHON=python3] scripts/gpu_suite.sh [FOLDER]
#
# FOLDER is results/<UTC date>-<gpu> unless given; results/archive/ is what git keeps. What it holds
# is not done again, so a second call goes on where the time ended the first. DEVICE=cpu goes through all of it in a small form.
# FAULTS, all or some such as kill@rank1:step3, are planted into the two nodes, each for 40 s.
# Exit code: 0; 3 a gate failed; 6 nothing could be run.
set -uo pipefail

budget_s=${BUDGET_S:-540}
together_s=150 # for ranks that share a device: enough for the gate, and not all if they hang
read -ra faults <<<"${FAULTS:-}"
[[ ${FAULTS:-} != all ]] ||
    faults=({hang,kill,oom}@rank1:step3 {raise,mismatch}@rank0:step3 corrupt@rank1:step0)
device=${DEVICE:-cuda}
python=${PYTHON:-python3}
folder=${1:+$(realpath -m "$1")}
cd "$(dirname "$0")/.." || exit
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}   # spbench need not be installed
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} # ranks meet here even without a network

if [[ $device == cuda ]]; then
    names=$(nvidia-smi --query-gpu=name --format=csv,noheader) || {
        echo "no NVIDIA GPU here; DEVICE=cpu goes through the suite without one" >&2
        exit 6
    }
    gpus=$(wc -l <<<"$names")
    name=$(head -n 1 <<<"$names" | tr '[:upper:] ' '[:lower:]-')
    strategies=all large=dsp-720m ranks=1,2,4,8,16,32,64 together=(3 4)
    effort=() smaller=() shapes=() kernels=() depth=4
    onto=hgx-h100
    [[ $name != *h200* ]] || onto=hgx-h200
    calibrated=(--gpus 1 --onto "$onto") # links of several GPUs are timed by calibrate itself
    ((gpus == 1)) || calibrated=()
else
    gpus=1 name=cpu
    strategies=dsp,rsa large=dsp-720m-small ranks=1,2,4 together=(2)
    effort=(--quick) smaller=(--set axes.space=64 --set depth=1)
    shapes=(-w configs/verify/attention-only.yaml)
    calibrated=(--gpus 2) kernels=(-w dsp-720m-small) depth=1
fi
folder=${folder:-$PWD/results/$(date -u +%Y%m%d)-${name#nvidia-}}

# within SECONDS ARGUMENTS...: spbench, ended in order once they or the budget are spent.
within() {
    local most_s=$1 left_s=$((budget_s - SECONDS))
    shift
    ((most_s < left_s)) || most_s=$left_s
    if ((most_s <= 0)); then
        echo "no time left for: spbench $*" >&2
        return 124
    fi
    timeout --foreground --kill-after=20 "$most_s" "$python" -m spbench "$@"
}

verify() { # SECONDS RANKS DTYPE
    within "$1" verify -s "$strategies" --gpus "$2" --dtype "$3" --device "$device" \
        "${shapes[@]}" --timeout "$1" --json
}

run() {
    within "$budget_s" run -s "$strategies" --device "$device" "${effort[@]}" "${smaller[@]}" \
        --skip-invalid --timeout 300 --out "$folder" --add "$@"
}

gate() {
    local file=$folder/verify-$1.json
    [[ -s $file ]] && ! grep -q WRONG "$file" && return
    verify "$budget_s" 1 "$1" >"$file"
}

free_port() {
    "$python" -c 'import socket as s; print(s.create_server(("", 0)).getsockname()[1])'
}

# NCCL refuses two ranks of one host on one device, so to NCCL each is a host of its own.
as_host() { # NAME COMMAND...
    NCCL_HOSTID=$1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "${@:2}"
}

ranks_on_one_device() { # RANKS DTYPE
    local size=$1 json=$folder/verify-$2-$1-ranks-on-one-device.json port rank
    echo "$size ranks on one device, $2"
    port=$(free_port)
    for ((rank = 0; rank < size; rank++)); do
        RANK=$rank WORLD_SIZE=$size LOCAL_RANK=0 LOCAL_WORLD_SIZE=$size \
            MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_DEBUG=WARN \
            as_host "rank$rank" verify "$together_s" "$size" "$2" >"$json.$rank" &
    done
    wait
    mv "$json.0" "$json"
    rm "$json".* # the other ranks print nothing
}

# It may be refused here: then what was seen is the result.
several_ranks_on_one_device() {
    local seen=$folder/ranks-on-one-device.txt size
    [[ -e $seen ]] || ((budget_s - SECONDS < together_s)) && return
    for size in "${together[@]}"; do
        ranks_on_one_device "$size" float32 &
        ranks_on_one_device "$size" bfloat16 &
        ranks_on_one_device "$size" float64 &
        wait
    done >"$seen.part" 2>&1
    mv "$seen.part" "$seen"
}

# Two nodes of one device, which is the same one. What their rows say, but for times: ranks that
# share a device tell nothing of speed. FAULT is planted, or "".
two_nodes() { # FAULT STRATEGIES
    local port node place ended
    port=$(free_port)
    place=$(mktemp -d)
    for node in 1 0; do
        SPBENCH_FAULT=$1 as_host "node$node" within "$together_s" \
            run -s "$2" -w dsp-720m-small --device "$device" --quick --gpus 2 --nnodes 2 \
            --node-rank "$node" --rdzv-endpoint "127.0.0.1:$port" --hang-after 10 --timeout 60 \
            --out "$place/$node" >/dev/null 2>"$place/said.$node" &
    done
    wait $! # node 0
    ended=$?
    echo "$(date -u +%T) ${1:-no fault}: exit $ended"
    wait
    "$python" scripts/gpu_suite.py rows "$place/0" || cat "$place"/said.*
    rm -r "$place"
}

two_nodes_on_one_device() {
    local seen=$folder/nodes-on-one-device.txt fault
    [[ -e $seen ]] && return
    rm -f "$seen.part"
    for fault in "" "${faults[@]}"; do
        ((budget_s - SECONDS < together_s)) && return # what is there is not the whole
        two_nodes "$fault" "$([[ $fault ]] && echo dsp || echo "$strategies")" >>"$seen.part"
    done
    mv "$seen.part" "$seen"
}

calibration() {
    [[ -s $folder/cluster.yaml ]] ||
        within 300 calibrate "$(basename "$folder")" "${calibrated[@]}" "${kernels[@]}" \
            --device "$device" --out "$folder/cluster.yaml"
}

by_hand() {
    local seen=$folder/by-hand.txt left_s=$((budget_s - SECONDS))
    [[ -s $seen ]] || ((left_s <= 0)) && return
    timeout "$left_s" "$python" benchmarks/by_hand.py --workload "$large" --device "$device" \
        --set depth="$depth" --pairs 5 >"$seen.part"
    mv "$seen.part" "$seen"
}

# Cheap and telling cells first: the time may end before the dear ones.
shares_of_one_device() {
    local cells order
    cells=$(run -w "$large" --share --gpus "$ranks" --dry-run --json) || return
    order=$("$python" scripts/gpu_suite.py order "$large" "${smaller[@]}" <<<"$cells") || return
    run -w "$large" --share --gpus "$order" --launches 1 >/dev/null
}

suite() {
    echo "$(date -u +%FT%TZ) $folder, $budget_s s"
    gate float32 & # no clock runs in a gate, so two may share the device
    gate bfloat16 &
    gate float64 &
    wait
    several_ranks_on_one_device & # no clock runs here either
    two_nodes_on_one_device &
    wait
    run -w dsp-720m-small >/dev/null
    ((gpus > 1)) && run -w dsp-720m >/dev/null
    calibration
    by_hand
    shares_of_one_device # last, since they take whatever time is left
    find "$folder" -name 'verify-*.json' -empty -delete
    "$python" -m spbench compare "$folder" >"$folder/compare.txt"
    "$python" -m spbench plot "$folder"
    "$python" scripts/gpu_suite.py summary "$folder"
}

mkdir -p "$folder"
[[ -e $folder/run.json ]] || echo '{}' >"$folder/run.json" # the gates write here before any run
suite 2>&1 | tee -a "$folder/suite.log"
