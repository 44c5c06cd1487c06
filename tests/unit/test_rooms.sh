#!/bin/sh
# The rooms of src/ and what each part includes (tests/unit/check_rooms.py). One line a test: ok NAME | not ok NAME | skip NAME reason.
set -u
cd "$(dirname "$0")/../.." || exit
python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || { echo "skip rooms needs python3: apt-get install python3"; exit 0; }
exec "$python" tests/unit/check_rooms.py
