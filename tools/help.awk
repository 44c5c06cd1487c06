# One line a target: what follows "##" after a rule.
/^[a-z][a-z0-9-]*:.*##/ { target = $1; sub(/:.*/, "", target); sub(/.*## /, ""); printf "  make %-15s %s\n", target, $0 }
