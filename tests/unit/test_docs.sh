#!/bin/sh
# The documentation does what it says. One line a test:
#   ok NAME | not ok NAME | skip NAME reason
# The exit status is 1 if a test failed. Fenced blocks of README.md, docs/*.md and docs/lab/*.md are taken by their language:
#   sh     run as written, in a copy of the tree. `make` runs only its quick targets; of the others make says what it would do
#   cuda   the quickstart for GPUs; tests/unit/test_examples.sh compiles and runs it
#   c      compiled and run. A block with a main is a whole program. Any other goes on from step 4 of examples/quickstart.c: its
#          variables are there, and so is `status`, whose error is printed at the end
#   text   directly after a c block: what that block prints; "..." stands for anything
#   cmake  the lines that a user's CMakeLists.txt needs, tried on an installed copy
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset MAKEFLAGS MFLAGS MAKELEVEL
CC=${CC:-cc}
warnings='-std=c11 -Wall -Wextra -Werror'
failed=0

report() { # exit status, name; what was said is in $work/log
    if [ "$1" -eq 0 ]; then echo "ok $2"; else echo "not ok $2"; failed=1; sed 's/^/    /' "$work/log"; fi
    : > "$work/log"
}
: > "$work/log"
matches() { # wanted, came: line by line
    awk -v wanted="$1" '
        { if ((getline want < wanted) <= 0 || !like($0, want)) { print "> " $0; bad = 1 } }
        function like(line, want,    part, n, i, at) {
            n = split(want, part, "\\.\\.\\.")
            if (n == 1) return line == want
            if (index(line, part[1]) != 1) return 0
            for (i = 1; i <= n; i++) { at = index(line, part[i]); if (part[i] != "" && !at) return 0; line = substr(line, at + length(part[i])) }
            return part[n] == "" || line == ""
        }
        END { if ((getline want < wanted) > 0) { print "< " want; bad = 1 } exit bad }' "$2"
}
mkdir "$work/blocks" "$work/tree"
cd "$root" || exit
tar -cf - $(ls | grep -vx build) | tar -C "$work/tree" -xf - || exit
cd "$work/tree" || exit
pages="README.md $(echo docs/*.md docs/lab/*.md)"

# ---- blocks: NUMBER.LANGUAGE holds one, NUMBER.name where it stands ----
awk -v to="$work/blocks" '
    FNR == 1 { inside = 0 }
    /^```/ && !inside { inside = 1; block = sprintf("%s/%04d", to, ++n); body = block "." substr($0, 4); printf "" > body
                        print FILENAME ":" FNR > (block ".name"); close(block ".name"); next }
    /^```/ { inside = 0; close(body); next }
    inside { print > body }' $pages

# ---- the quickstart ----
quickstart=$(grep -l 'examples/quickstart.c' "$work"/blocks/*.c | head -n 1)
diff "$quickstart" examples/quickstart.c > "$work/log" 2>&1
report $? 'README.md quickstart is examples/quickstart.c'
cat "$work"/blocks/*.cuda 2> /dev/null | diff - examples/quickstart.cu > "$work/log" 2>&1
report $? 'README.md CUDA quickstart is examples/quickstart.cu'
[ "$(wc -l < examples/quickstart.c)" -le 40 ]
report $? 'quickstart is at most 40 lines'
mkdir "$work/quickstart" && cp -r examples tegroup.h tegroup_cuda.cuh "$work/quickstart/" && cp "$quickstart" "$work/quickstart/examples/quickstart.c"
command=$(sed -n '1s|^/\* \(.*\) \*/$|\1|p' "$quickstart")
(cd "$work/quickstart" && sh -ec "$command") > "$work/said" 2> "$work/log"
code=$?
printf '%s\n' '   0   -5   -5' '  -8   -9   -5' '   2    2    2' | diff - "$work/said" >> "$work/log" && [ -n "$command" ] && [ $code -eq 0 ]
report $? 'quickstart, run by its first line, prints X W^T'

# ---- sh blocks ----
cat > "$work/prelude" <<'PRELUDE'
set -e
make() {
    for word; do case $word in help|headers|install) command make "$@"; return;; esac; done
    command make -n "$@" > /dev/null
}
PRELUDE
for block in "$work"/blocks/*.sh; do
    [ -f "$block" ] || continue
    name=$(cat "${block%.sh}.name")
    cat "$work/prelude" "$block" > "$work/script"
    sh "$work/script" > "$work/log" 2>&1
    report $? "$name sh block runs"
done

# ---- c blocks ----
sed 's/TEGROUP_IMPLEMENTATION/TEGROUP_EXTERN/; s|^ */\* 4\. run.*|@rest|' examples/quickstart.c | sed '/^@rest/,$d' > "$work/before"
printf '    tegroup_status status = TEGROUP_OK;\n    {\n' >> "$work/before"
cat > "$work/after" <<'AFTER'
    }
    if (status == TEGROUP_OK) return 0;
failed:
    tegroup_error_text(&error, text, sizeof text);
    puts(text);
    return 3;
}
AFTER
printf '#define TEGROUP_EXTERN\n#define TEGROUP_IMPLEMENTATION\n#include "tegroup.h"\n' > "$work/library.c"
$CC -std=gnu11 -O1 -I. -c "$work/library.c" -o "$work/library.o" || exit
for block in "$work"/blocks/*.c; do
    base=${block%.c}
    name=$(cat "$base.name")
    if grep -q 'int main(' "$block"; then
        $CC $warnings -I. "$block" -o "$work/program" -lm > "$work/log" 2>&1
    else
        { cat "$work/before"; printf '#line %d "%s"\n' $((${name##*:} + 1)) "${name%:*}"; cat "$block" "$work/after"; } > "$work/fragment.c"
        $CC $warnings -I. "$work/fragment.c" "$work/library.o" -o "$work/program" -lm > "$work/log" 2>&1
    fi
    report $? "$name c block compiles" > "$work/result"
    cat "$work/result"
    next=$(printf '%s/blocks/%04d' "$work" $(($(basename "$base" | sed 's/^0*//') + 1)))
    grep -q '^ok' "$work/result" || continue
    "$work/program" > "$work/said" 2>&1
    code=$?
    if [ -f "$next.text" ] && [ "$(sed 's/:.*//' "$next.name")" = "${name%:*}" ]; then
        matches "$next.text" "$work/said" > "$work/log" && { [ $code -eq 0 ] || [ $code -eq 3 ]; }
        report $? "$name c block prints what $(cat "$next.name") says"
    else
        cp "$work/said" "$work/log"
        report $code "$name c block runs"
    fi
done

# ---- cmake blocks ----
for block in "$work"/blocks/*.cmake; do
    name=$(cat "${block%.cmake}.name")
    if ! command -v cmake > /dev/null; then echo "skip $name cmake block needs cmake: apt-get install cmake"; continue; fi
    mkdir -p "$work/consumer"
    { printf 'cmake_minimum_required(VERSION 3.15)\nproject(consumer C)\nadd_executable(my_program ../tree/examples/quickstart.c)\n'; cat "$block"; } > "$work/consumer/CMakeLists.txt"
    { cmake -S . -B "$work/cmake" -DCMAKE_INSTALL_PREFIX="$work/installed" && cmake --install "$work/cmake" &&
        cmake -S "$work/consumer" -B "$work/consumer/build" -DCMAKE_PREFIX_PATH="$work/installed" &&
        cmake --build "$work/consumer/build" && "$work/consumer/build/my_program"; } > "$work/log" 2>&1
    report $? "$name cmake block builds a program against an installed copy"
done

# ---- what pages point to ----
for page in $pages; do
    directory=$(dirname "$page")
    awk '/^```/ { inside = !inside; next } !inside' "$page" | grep -oE '\]\([^)]*\)' | sed 's/^](//; s/)$//' | grep -vE '^https?:' | sort -u |
        while read -r target; do
            file=$directory/${target%%#*}
            [ -n "${target%%#*}" ] || file=$page
            [ -e "$file" ] || echo "$page: $target: no such file"
            case $target in
            *'#'*) sed -n 's/^#\{1,6\} //p' "$file" | tr '[:upper:] ' '[:lower:]-' | tr -cd 'a-z0-9_\n-' | grep -qxF -- "${target#*#}" || echo "$page: $target: no such heading" ;;
            esac
        done
done > "$work/log" 2>&1
[ ! -s "$work/log" ]
report $? 'links resolve'
unlinked() { # folder, index: pages of the one that the other does not link to
    for page in "$1"/*.md; do
        [ "$page" = "$2" ] || grep -qF "($(realpath -m --relative-to="$(dirname "$2")" "$page")" "$2" || echo "$page is not linked from $2"
    done
}
{ unlinked docs README.md; unlinked docs/lab docs/lab/README.md; grep -qF '(lab/README.md)' docs/performance.md || echo 'docs/lab/README.md is not linked from docs/performance.md'; } > "$work/log"
for picture in docs/*.svg; do grep -qF "($(basename "$picture")" docs/*.md || grep -qF "($picture" README.md || echo "$picture is not shown"; done >> "$work/log"
[ ! -s "$work/log" ]
report $? 'every page and picture is reachable'
cat $pages | grep -oE '\b(TEGROUP|tegroup)_[A-Za-z0-9_]+' | sort -u | while read -r word; do
    grep -rqF --exclude-dir=docs --exclude=README.md -- "$word" . || echo "$word is not in the source"
done > "$work/log"
[ ! -s "$work/log" ]
report $? 'names in the pages exist'

# ---- files that pages name ----
# A word with a folder of the tree, and a word that ends like a file, are files: where it says, from the top, from src or from docs,
# or, without a folder, anywhere. What is made lies in build/, and what others have stands in the list.
named() { # pages on standard input: "what is named" a line
    sed 's|https\{0,1\}://[^ )>]*||g' | grep -oE '[A-Za-z0-9_./*-]+' | sed 's|[.,]*$||' |
        grep -E '^(\.\./)*(src|docs|tests|tools|examples)/[A-Za-z0-9_./*-]+$|^([A-Za-z0-9_.-]+/)*[A-Za-z0-9][A-Za-z0-9_*-]*\.(h|hpp|c|cu|cuh|py|sh|md|svg|json|txt|parts|awk)$' | sort -u
}
elsewhere='gpt_oss/torch/model.py|stdio.h|stdlib.h|cuda_bf16.h|gemm.hpp|grouped_linear.py|cublaslt_grouped_gemm.cu'
missing() { # names on standard input: those that no file has
    grep -vxE "$elsewhere" | while read -r name; do
        case $name in
        build/*) ;;
        */*) name=${name##*../}
            for file in $name; do [ -e "$file" ] || [ -e "src/$file" ] || [ -e "docs/$file" ] || [ -e "docs/lab/$file" ] || echo "$name: no such file"; done ;;
        *) [ -n "$(find . -name "$name" | head -n 1)" ] || echo "$name: no such file" ;;
        esac
    done
}
cat $pages | named | missing > "$work/log"
[ ! -s "$work/log" ]
report $? 'files that the pages name exist'
printf '%s\n' 'see `src/core/no_such_part.h`, nor `no_such_tool.py`, `core/no_such.h`.' 'https://example.org/other.py and `tools/stitch.sh`, README.md, `core/checks.h`' | named | missing | tr '\n' ' ' > "$work/log"
grep -qx 'core/no_such.h: no such file no_such_tool.py: no such file src/core/no_such_part.h: no such file ' "$work/log"
report $? 'a file that does not exist would be seen'

# ---- how long, how wide ----
wide() { # pages: their lines beyond 120 columns, but for tables, addresses of links, what programs print, and compile commands
    for page; do
        LC_ALL=C.UTF-8 awk -v page="$page" '
            /^ *```/ { inside = !inside; text = inside && /```text/; next }
            text || /^ *\|/ || (inside && /^\/\* (cc|nvcc) .* \*\/$/) { next }
            { line = $0; gsub(/\]\(https?:[^)]*\)/, "]", line) }
            length(line) > 120 { print page ":" FNR ": " length(line) " columns" }' "$page"
    done
}
wide $pages CHANGELOG.md > "$work/log"
[ ! -s "$work/log" ]
report $? 'pages are at most 120 columns wide'
long=$(printf '%0121d' 0)
printf '%s\n' "$long" "| $long |" '```text' "$long" '```' '```c' "$long" '```' > "$work/wide.md"
wide "$work/wide.md" | sed 's|.*/||' | tr '\n' ' ' > "$work/log"
grep -qx 'wide.md:1: 121 columns wide.md:7: 121 columns ' "$work/log"
report $? 'a line that is too long would be seen'
short() { # page, lines allowed: says what it has beyond them, not counting code
    lines=$(awk '/^```/ { inside = !inside; next } !inside' "$1" | wc -l)
    [ "$lines" -le "$2" ] || echo "$1 has $lines lines, not $2"
}
{ short README.md 120; [ "$(wc -l < docs/performance.md)" -le 150 ] || echo "docs/performance.md has more than 150 lines"; short docs/architecture.md 220; } > "$work/log"
[ ! -s "$work/log" ]
report $? 'README.md has at most 120 lines without code, docs/performance.md 150, docs/architecture.md 220'
{ yes | head -n 121; echo '```'; echo code; echo '```'; } > "$work/long.md"
[ -z "$(short "$work/long.md" 121)" ] && [ -n "$(short "$work/long.md" 120)" ]
report $? 'a page that is too long would be seen'

# ---- statuses, bits, tables ----
cat > "$work/statuses.c" <<'STATUSES'
#define TEGROUP_EXTERN
#include "tegroup.h"
#include <stdio.h>
int main(void) {
    for (int s = 0; s < TEGROUP_STATUS_COUNT; s++) printf("%s (%d): %s\n", tegroup_status_name((tegroup_status)s), s, tegroup_status_string((tegroup_status)s));
    return 0;
}
STATUSES
$CC -I. "$work/statuses.c" "$work/library.o" -o "$work/statuses" -lm 2> "$work/log" && "$work/statuses" > "$work/statuses.txt"
report $? 'statuses listed'
sed 's/^/## /' "$work/statuses.txt" > "$work/wanted"
grep -E '^## (OK|ERROR_)' docs/errors.md | diff "$work/wanted" - > "$work/log"
report $? 'docs/errors.md has a section for each status'
awk -F': ' '/^## (OK|ERROR_)/ { if (string != "") print heading; heading = $0; string = $2 } index($0, string ": ") == 1 { string = "" } END { if (string != "") print heading }' docs/errors.md |
    grep -vE '^## (OK|ERROR_CUDA|ERROR_CUBLAS) ' > "$work/log" # those two need a GPU
[ ! -s "$work/log" ]
report $? 'docs/errors.md shows a message of each status'
sed -n 's/^#define TEGROUP_SNAPSHOT_\([A-Z]*\) *\([0-9]*\)u .*/| `\1` | \2 |/p' tegroup.h > "$work/wanted"
grep -oE '^\| `[A-Z]+` \| [0-9]+ \|' docs/errors.md | diff "$work/wanted" - > "$work/log" && [ -s "$work/wanted" ]
report $? 'docs/errors.md has a row for each snapshot bit'
command=$(sed -n '1s|^/\* \(.*\) -o backends_doc -lm && ./backends_doc > docs/backends.md \*/$|\1|p' tools/backends_doc.c)
{ $command -o "$work/backends_doc" -lm && "$work/backends_doc" > "$work/backends.md" && diff "$root/docs/backends.md" "$work/backends.md"; } > "$work/log" 2>&1 && [ -n "$command" ]
report $? 'docs/backends.md is what tools/backends_doc.c prints'
command=$(sed -n '1s|^/\* \(.*\) -o scale_layouts_doc -lm && ./scale_layouts_doc > docs/scale-layouts.svg \*/$|\1|p' tools/scale_layouts_doc.c)
{ $command -o "$work/scale_layouts_doc" -lm && "$work/scale_layouts_doc" > "$work/scale-layouts.svg" && diff "$root/docs/scale-layouts.svg" "$work/scale-layouts.svg"; } > "$work/log" 2>&1 && [ -n "$command" ]
report $? 'docs/scale-layouts.svg is what tools/scale_layouts_doc.c draws'
exit $failed
