#!/usr/bin/env bash
# pip from 26.3 on installs no para-attn, with --no-deps neither: it refuses what an extra that nobody asked for would need.
#
# Package    para-attn 0.3.38, pip 26.2.1 and 26.3, Python 3.11
# Behaviour  para-attn's extra "dev" asks for diffusers by the address of a git repository. pip 26.2.1 objects to that where it
#            would install it: not here, where no extra is asked for and --no-deps is given. pip 26.3 reads all that a package
#            from PyPI asks for, of whatever extra, and stops. It does so for files that PyPI itself serves, not for those of
#            an index under another name.
# Output     pip 26.2.1: para-attn 0.3.38 installed
#            pip 26.3: ERROR: Distributions from PyPI cannot declare direct URL dependencies.
# A guess    that an extra counts where it is asked for, and that --no-deps leaves alone what a package asks for.
#
# Ends with 0 while the two do so, with 1 once they do not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 26.2.1 26.3; do
    python3 -m venv "$folder/venv$version"
    python="$folder/venv$version/bin/python"
    "$python" -m pip install --quiet "pip==$version"
    if "$python" -m pip install --quiet --no-deps para-attn==0.3.38 2> "$folder/errors"; then
        said=$("$python" -c 'import importlib.metadata as m; print("para-attn", m.version("para-attn"), "installed")')
    else
        said=$(grep -m 1 ERROR "$folder/errors" || tail -n 1 "$folder/errors")
    fi
    echo "pip $version: $said"
done | tee "$folder/seen"
cat > "$folder/expected" <<'TEXT'
pip 26.2.1: para-attn 0.3.38 installed
pip 26.3: ERROR: Distributions from PyPI cannot declare direct URL dependencies.
TEXT
diff "$folder/expected" "$folder/seen"
