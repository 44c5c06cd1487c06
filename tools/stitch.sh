#!/bin/sh
# Stitch a public header from its parts:  tools/stitch.sh src/tegroup.parts > tegroup.h
#
# A numbered part opens with its title, /* ---- Title ---- */, which becomes /* ==== [n] Title (src/core/name.h) ==== */ and a
# line of the map. Lines between "@each-real" and "@end" are copied once for float and once for double, with REAL and FSUF (a function
# suffix) replaced: C has no templates, and one owner of the arithmetic is worth these few lines of awk. "#pragma once" and what a part
# includes of others are for editors and tests, which open a part by itself, and left out.
set -eu
cd "$(dirname "$1")"
list=$(basename "$1")
awk '
function fail(message) { printf "stitch: %s\n", message > "/dev/stderr"; exit 1 }
function title_of(file,    line) {
    if ((getline line < file) <= 0) fail("cannot read " file)
    close(file)
    if (line !~ /^\/\* ---- .* ---- \*\/$/) fail(file " does not open with /* ---- Title ---- */")
    return substr(line, 9, length(line) - 16)
}
function instance(block, real, suffix) {
    gsub(/REAL/, real, block); gsub(/FSUF/, suffix, block); printf "%s", block
}
function copy(file, number, title,    line, block, inside, first, left_out) {
    first = 1
    while ((getline line < file) > 0) {
        if (first && number) line = "/* ==== [" number "] " title " (src/" file ") ==== */"
        first = 0
        if (line ~ /^#pragma once$/ || line ~ /^#include "[a-z]+\/[a-z0-9_]+\.h"$/) { left_out = 1; continue }
        if (left_out && line == "") { left_out = 0; continue }
        left_out = 0
        if (line ~ /@each-real/) { inside = 1; block = "" }
        else if (line ~ /@end/ && inside) { inside = 0; instance(block, "float", "f32"); printf "\n"; instance(block, "double", "f64") }
        else if (inside) block = block line "\n"
        else print line
    }
    close(file)
    if (inside) fail(file ": @each-real without @end")
}
/^#/ || NF == 0 { next }
{ kind[++count] = $1; file[count] = $2; if ($1 == "part") title[count] = title_of($2) }
END {
    for (i = 1; i <= count; i++) {
        if (kind[i] == "raw") copy(file[i], 0, "")
        else if (kind[i] == "part") { print ""; copy(file[i], ++n, title[i]) }
        else if (kind[i] == "map") {
            print "\n/* Map: the parts, their files in src/, their titles. Search for the number in brackets.\n *"
            m = 0
            for (j = 1; j <= count; j++) if (kind[j] == "part") printf " *   %-4s %-24s %s\n", "[" ++m "]", file[j], title[j]
            print " */"
        } else fail("unknown line: " kind[i])
    }
}' "$list"
