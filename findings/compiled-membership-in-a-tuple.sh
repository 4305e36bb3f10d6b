#!/usr/bin/env bash
# Compiled code answers `1 in dims` wrongly where `dims` is a tuple of integers that the compiler has made symbolic.
#
# Package    torch 2.13.0 (CPU build), Python 3.11
# Behaviour  torch.compile gives 0 where the same function, run eagerly, gives 1: with dynamic=True at the first call; by
#            default from the third value of the tuple on, when automatic dynamic shapes have made its integer symbolic.
#            No warning, no graph break, no error. The backend makes no difference: "eager" only traces.
# Output     dynamic: eager 1, compiled 0 / by default, for (3,), (2,), (1,): eager 0 0 1, compiled 0 0 0
# A guess    that a comparison with a symbolic integer becomes a guard, as `dims[0] == 1` does, which is answered rightly
#            (last line of the output): membership would then be retraced for each value.
#
# Ends with 0 while torch does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/membership.py" <<'PYTHON'
import torch

x = torch.zeros(2)


def by_membership(x, dims):
    return x + (1.0 if 1 in dims else 0.0)


def by_equality(x, dims):
    return x + (1.0 if dims[0] == 1 else 0.0)


def told(function, values):
    return " ".join(f"{function(x, dims)[0].item():.0f}" for dims in values)


def compared(name, function, values, **options):
    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager", **options)
    print(f"{name}: eager {told(function, values)}, compiled {told(compiled, values)}")


print("torch", torch.__version__.partition("+")[0])
compared("in, dynamic", by_membership, [(1,)], dynamic=True)
compared("in, by default", by_membership, [(3,), (2,), (1,)])
compared("==, by default", by_equality, [(3,), (2,), (1,)])
PYTHON
cat > "$folder/expected" <<'TEXT'
torch 2.13.0
in, dynamic: eager 1, compiled 0
in, by default: eager 0 0 1, compiled 0 0 0
==, by default: eager 0 0 1, compiled 0 0 1
TEXT
"$folder/venv/bin/python" "$folder/membership.py" | tee "$folder/seen"
diff "$folder/expected" "$folder/seen"
