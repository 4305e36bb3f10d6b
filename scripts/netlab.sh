#!/bin/sh
# The network lab: several nodes with real links on one machine. See docs/netlab.md, or --help.
exec python3 "$(dirname "$(readlink -f "$0")")/netlab" "$@"
