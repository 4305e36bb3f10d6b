#!/usr/bin/env bash
# spbench on several nodes under Slurm: one spbench a node, which starts the node's ranks itself.
#
#   sbatch --nodes=2 --gpus-per-node=8 scripts/slurm.sh -s all --gpus 4,8,16 -w dsp-720m
#
# Everything behind the script's name goes to 'spbench run'. Results, on a file system that all
# nodes see, are in $OUT (results/slurm-JOBID unless set); the same OUT again goes on where a job
# ended. What must be set up on every node (modules, a virtual environment) goes into SETUP.
#
#SBATCH --job-name=spbench
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=02:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=spbench-%j.log
set -euo pipefail

setup=${SETUP:-}
out=${OUT:-results/slurm-$SLURM_JOB_ID}
if [[ -n $setup ]]; then
    set +u # scripts of modules and conda read variables that are not set
    # shellcheck disable=SC1090
    source "$setup"
    set -u
fi

# srun starts one task a node; spbench finds its node's number, their count and the first node's
# name in srun's variables. --kill-on-bad-exit=0: when a node fails, node 0 still writes the row.
# --cpu-bind=none: the task's cores are those of all ranks of its node.
exec srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none \
    --kill-on-bad-exit=0 \
    spbench run --out "$out" --join-timeout 300 "$@"
