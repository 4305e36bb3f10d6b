#!/usr/bin/env bash
# ring-flash-attn needs transformers for its import, names no need for it, and no longer imports with transformers 5.
#
# Package    ring-flash-attn 0.1.8, torch 2.13.0 (CPU build), transformers 4.57.6 and 5.24.0, Python 3.11. It also imports
#            flash_attn, which is built for GPUs: a module of the names that it imports takes its place here.
# Behaviour  its metadata declares nothing. Its package imports an adapter for models at once, which imports transformers, so
#            that the ring, which has nothing to do with it, cannot be imported without. With transformers 5, which has not the
#            names that the adapter asks for under either of the two ways that it tries, the import fails as well.
# Output     without transformers: ModuleNotFoundError / 4.57.6: imported / 5.24.0: ImportError
# A guess    that a package which declares no needs imports without any, and a ring without a library of models.
#
# Ends with 0 while it does so, with 1 once it does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet "$@"; }
pip torch==2.13.0 numpy==2.4.6 ring-flash-attn==0.1.8
mkdir "$folder/flash_attn"
cat > "$folder/flash_attn/flash_attn_interface.py" <<'PYTHON'
_flash_attn_forward = _flash_attn_backward = _flash_attn_varlen_forward = _flash_attn_varlen_backward = None
PYTHON
touch "$folder/flash_attn/__init__.py"
cat > "$folder/imported.py" <<'PYTHON'
try:
    import ring_flash_attn
except ImportError as error:
    print(type(error).__name__)
else:
    print("imported")
PYTHON
seen() { echo "$1: $(PYTHONPATH="$folder" "$folder/venv/bin/python" -W ignore "$folder/imported.py")"; }
{
    seen "without transformers"
    pip transformers==4.57.6
    seen 4.57.6
    pip transformers==5.24.0
    seen 5.24.0
} 2> /dev/null | tee "$folder/seen"
cat > "$folder/expected" <<'TEXT'
without transformers: ModuleNotFoundError
4.57.6: imported
5.24.0: ImportError
TEXT
diff "$folder/expected" "$folder/seen"
