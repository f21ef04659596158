#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# semantics_citations.sh: every "semantics n.m" in headers, code, tests and documents names a section of
# doc/semantics.md that exists and says something. Lists and ranges ("1.3, 2.11 and 5.5", "2.2 to 2.8") are
# checked number by number, as are a "step", "item" or "row" of a section, and the references within the
# document.
set -u
top=${ATTN_TEST_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
document=$top/doc/semantics.md
. "$top/tests/tap.sh"

# Lines "FILE n.m [row k]", one for each number that a file cites.
cited() { # FILE...
    awk '
    function cite(number) { print file, number }
    # text: what follows the word; the numbers at its head are cited.
    function take(text,   last, joint, number, parts, i) {
        last = ""
        while (match(text, /^[0-9]+(\.[0-9]+)?/)) {
            number = substr(text, 1, RLENGTH)
            text = substr(text, RLENGTH + 1)
            if (joint ~ /to/ && split(last, parts, ".") == 2)
                for (i = parts[2] + 1; i < substr(number, length(parts[1]) + 2) + 0; i++) cite(parts[1] "." i)
            if (match(text, /^,? (step|item|rows?) [0-9]+/)) {
                joint = substr(text, 1, RLENGTH)
                sub(/^.* /, "", joint)
                cite(number " row " joint)
            } else {
                cite(number)
            }
            last = number
            if (!match(text, /^(,| and| to| or)+ [0-9]+\.[0-9]/)) return
            match(text, /^[^0-9]*/)
            joint = substr(text, 1, RLENGTH)
            text = substr(text, RLENGTH + 1)
        }
    }
    function scan(line,   text) {
        while (match(line, /[Ss]emantics (sections? )?[0-9]/)) {
            text = substr(line, RSTART)
            line = substr(line, RSTART + RLENGTH)
            sub(/^[Ss]emantics (sections? )?/, "", text)
            take(text)
        }
    }
    # A citation may go on in the next line, so a line that has one is read together with its neighbour.
    FNR == 1 { scan(held); held = ""; file = FILENAME }
    held == "" && !/[Ss]emantics/ { next }
    {
        gsub(/^[ \t]*(\*\/|\/\*|\/\/|\*|#|>)?[ \t]*/, "")
        gsub(/[`"]/, "")
        gsub(/[ \t]+/, " ")
        scan(held " " $0)
        held = /[Ss]emantics/ ? $0 : ""
    }
    END { scan(held) }' "$@"
}

# Lines "n.m" for each section with text below its heading, and "n.m row k" for each numbered line of it.
said() { # DOCUMENT
    awk '
    /^##+ [0-9]+(\.[0-9]+)? / { section = $2; next }
    /^#/ { section = "" }
    section == "" || /^(---)?$/ { next }
    !(section in seen) { seen[section] = 1; print section }
    /^[0-9]+\. / { print section, "row", $1 + 0 }
    /^\| [0-9]+ \|/ { print section, "row", $2 }' "$1"
}

# The citations of files that the document does not answer, one a line; the status is that of a check.
dangling() { # DOCUMENT FILE...
    said "$1" | sort -u >"$tap_scratch/said"
    shift
    cited "$@" | sort -u >"$tap_scratch/cited"
    awk 'NR == FNR { said[$0] = 1; next }
         { number = $0; sub(/^[^ ]* /, "", number); if (!(number in said)) { print; bad = 1 } }
         END { exit bad }' "$tap_scratch/said" "$tap_scratch/cited"
}

# ------------------------------------------------- the check itself: it must find what is planted
cat >"$tap_scratch/document.md" <<'EOF'
## 1 First
Text.
### 1.1 Said
1. A step.
### 1.2 Empty
### 1.3 Said too
| # | text |
| 4 | a row |
EOF
plant() { # NAME TEXT WANTED: the numbers of dangling citations
    printf '%s\n' "$2" >"$tap_scratch/planted.c"
    found=$(dangling "$tap_scratch/document.md" "$tap_scratch/planted.c" | sed 's/^[^ ]* //' | tr '\n' ';')
    if [ "$found" = "$3" ]; then pass "$1"; else fail "$1" "found '$found', wanted '$3'"; fi
}
plant "a citation that is answered passes" '/* (semantics 1.1) and Semantics 1.3, 1.1. */' ''
plant "a section that is missing is found" '/* semantics 1.4 */' '1.4;'
plant "a section without text is found" '/* semantics 1.2 */' '1.2;'
plant "a chapter that is missing is found" '/* semantics 7: layers */' '7;'
plant "a later number of a list is found" '/* semantics 1.1, 1.3 and 9.9 */' '9.9;'
plant "a number within a range is found" '/* semantics 1.1 to 1.3 */' '1.2;'
plant "a citation over two lines is found" '/* see (semantics
 * 3.10). */' '3.10;'
plant "a step that is missing is found" \
    '/* semantics 1.1 step 1, semantics 1.1, item 2; semantics 1.3 row 4 */' '1.1 row 2;'

# ------------------------------------------------------------------------------- the tree
ok "doc/semantics.md is there" test -s "$document"
find "$top" -type d \( -name .git -o -name '*build*' -o -name autom4te.cache -o -name results -o -name .deps \
    -o -name .libs \) ! -name build-aux ! -path "$top" -prune -o -type f \( -name '*.[ch]' -o -name '*.cu' \
    -o -name '*.cuh' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.py' -o -name '*.md' -o -name '*.sh' \
    -o -name '*.am' -o -name '*.m4' -o -name '*.in' -o -name '*.[1357]' \) \
    ! -name semantics_citations.sh -print | sort >"$tap_scratch/files"
# shellcheck disable=SC2046 # names in this tree have no blanks
set -- $(cat "$tap_scratch/files")
missing=$(dangling "$document" "$@" | sed "s@^$top/@@")
name="every citation is answered"
if [ -z "$missing" ]; then pass "$name"; else fail "$name" "$missing"; fi
ok "there are citations to look at" test "$(wc -l <"$tap_scratch/cited")" -ge 150
for header in "$top"/include/attn/*.h "$top"/include/attn/draft/*.h; do
    grep -q '[Ss]emantics [0-9]' "$header" || continue
    ok "${header#"$top/"} says where the document is" grep -q 'doc/semantics\.md' "$header"
done

# References of the document to itself: numbers n.m that stand alone.
inner=$(awk '
    /^#/ { next }
    {
        text = $0
        while (match(text, /(^|[ (])[0-9]+\.[0-9]+([ ,;:)]|\.( |$)|$)/)) {
            number = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH - 1)
            gsub(/[^0-9.]/, "", number)
            sub(/\.$/, "", number)
            print number
        }
    }' "$document" | sort -u)
said "$document" | sort -u >"$tap_scratch/said"
lost=
for number in $inner; do
    case $number in 0.* | *.0 | *.[0-9][0-9][0-9]*) continue ;; esac # numbers, not sections
    grep -qx "$number" "$tap_scratch/said" || lost="$lost $number"
done
name="the document's own references hold"
if [ -z "$lost" ]; then pass "$name"; else fail "$name" "$lost"; fi
tap_done
