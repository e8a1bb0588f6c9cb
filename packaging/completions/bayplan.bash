# Completion of bayplan for bash. Made by `make reference`.
_bayplan() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="" one
  for one in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$one" in status|refused|explain|history|report|nodes|map|top|what-if|simulate|record-topology|replay|doctor|ping|metrics|log-level|import-state|export-state|release) verb="$one"; break ;; esac
  done
  case "$before" in
    -o) COMPREPLY=($(compgen -W "table wide json yaml name" -- "$word")); return ;;
    --output) COMPREPLY=($(compgen -W "table wide json yaml name" -- "$word")); return ;;
    --admin-socket) COMPREPLY=($(compgen -f -- "$word")); return ;;
    -n) COMPREPLY=($(compgen -W "$(bayplan status -o name 2>/dev/null | cut -d/ -f1 | sort -u)" -- "$word")); return ;;
    --namespace) COMPREPLY=($(compgen -W "$(bayplan status -o name 2>/dev/null | cut -d/ -f1 | sort -u)" -- "$word")); return ;;
    --outcome) COMPREPLY=($(compgen -W "placed degraded adopted" -- "$word")); return ;;
    --since) COMPREPLY=(); return ;;
    --svg) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --sort) COMPREPLY=($(compgen -W "elsewhere used promised faults stall" -- "$word")); return ;;
    --interval) COMPREPLY=(); return ;;
    --name) COMPREPLY=(); return ;;
    --memory) COMPREPLY=(); return ;;
    --memory-limit) COMPREPLY=(); return ;;
    --cpus) COMPREPLY=(); return ;;
    --hugepages) COMPREPLY=(); return ;;
    --qos) COMPREPLY=($(compgen -W "guaranteed burstable besteffort" -- "$word")); return ;;
    --annotation) COMPREPLY=(); return ;;
    --count) COMPREPLY=(); return ;;
    --topology) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --trace) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --engine) COMPREPLY=(); return ;;
    --config) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --set) COMPREPLY=(); return ;;
    --root) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --nri-socket) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --kubelet-directory) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --only) COMPREPLY=($(compgen -W "cpu memory" -- "$word")); return ;;
    --state-directory) COMPREPLY=($(compgen -f -- "$word")); return ;;
  esac
  case "$verb" in
    "") COMPREPLY=($(compgen -W "-h --help --version -o --output --json --admin-socket --no-color status refused explain history report nodes map top what-if simulate record-topology replay doctor ping metrics log-level import-state export-state release" -- "$word")) ;;
    status) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-n --namespace --outcome -w --watch -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    refused) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--since -n --namespace -w --watch -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    explain) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      COMPREPLY=($(compgen -W "$(bayplan status -o name 2>/dev/null)" -- "$word"))
      ;;
    history) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      COMPREPLY=($(compgen -W "$(bayplan status -o name 2>/dev/null)" -- "$word"))
      ;;
    report) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--since -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    nodes) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-w --watch -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    map) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--svg -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    top) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--sort --interval --once -n --namespace -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    what-if) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--name --memory --memory-limit --cpus --hugepages --qos --annotation --count -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      COMPREPLY=($(compgen -f -- "$word"))
      ;;
    simulate) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--topology --trace --engine --config --set --steps -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    record-topology) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--root -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    replay) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      COMPREPLY=($(compgen -f -- "$word"))
      ;;
    doctor) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--root --before-start --nri-socket -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    ping) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--runtime -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    metrics) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    log-level) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      COMPREPLY=($(compgen -W "debug info warning error" -- "$word"))
      ;;
    import-state) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--kubelet-directory --only --dry-run --yes -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
    export-state) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "-h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      COMPREPLY=($(compgen -f -- "$word"))
      ;;
    release) [[ "$word" == -* ]] && { COMPREPLY=($(compgen -W "--dry-run --yes --state-directory -h --help --version -o --output --json --admin-socket --no-color" -- "$word")); return; }
      ;;
  esac
}
complete -F _bayplan bayplan
