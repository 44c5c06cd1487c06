# Plant one fault: awk -f plant.awk -v fault=NAME faults.txt FILE...
#
# FILEs are the parts. The fault's old text must be found exactly once in all of them; the part that holds it is written back
# with the new text, or, with -v only_look=1, left as it is. Prints nothing, or what is wrong (exit status 1).
function fail(message) { printf "%s\n", message; failed = 1; exit 1 }
function pattern(text,    i, c, result) { # literal, but any white space matches any other
    gsub(/[ \t\n]+/, " ", text)
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == " ") result = result "[ \t\n]+"
        else if (c ~ /[A-Za-z0-9_]/) result = result c
        else if (c == "\\" || c == "^") result = result "\\" c
        else result = result "[" c "]"
    }
    return result
}
FNR == 1 { file = FILENAME; if (NR > 1) files[++count] = file }
NR == FNR {
    if ($0 ~ "^" fault ": ") { inside = 1; next }
    if (inside && /^- /) old = old (old == "" ? "" : "\n") substr($0, 3)
    else if (inside && /^\+ /) new = new (new == "" ? "" : "\n") substr($0, 3)
    else inside = 0
    next
}
{ text[file] = text[file] $0 "\n" }
END {
    if (failed) exit 1
    if (old == "") fail("no such fault")
    sub(/[ \t]+$/, "", old)
    old = pattern(old)
    for (i = 1; i <= count; i++) {
        rest = text[files[i]]
        at = 0
        while (match(rest, old)) {
            if (++found == 1) { where = files[i]; from = at + RSTART; size = RLENGTH }
            at += RSTART + RLENGTH - 1
            rest = substr(rest, RSTART + RLENGTH)
        }
    }
    if (found != 1) fail("its old text is found " found + 0 " times in src/, not once")
    if (!only_look) printf "%s%s%s", substr(text[where], 1, from - 1), new, substr(text[where], from + size) > where
}
