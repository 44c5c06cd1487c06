#!/bin/sh
# The rooms of src/ and what each part includes (check_rooms.py), how long and how deep functions are (check_functions.py).
# One line a test: ok NAME | not ok NAME | skip NAME reason.
set -u
cd "$(dirname "$0")/../.." || exit
python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || { echo "skip rooms needs python3: apt-get install python3"; exit 0; }
failed=0
"$python" tests/unit/check_rooms.py || failed=1
"$python" tests/unit/check_functions.py || failed=1
exit $failed
