# Completion of fabricctl for bash.

_fabricctl() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local commands="status discover pools arenas regions sessions groups devices shards migrate quota top decisions why replay tune vgpus vgpu-resize vgpu-share drain shutdown"
    local command="" candidate
    for candidate in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ " $commands " == *" $candidate "* ]] && command=$candidate && break
    done
    case $previous in
        --socket) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --arena)
            # The ids of this moment; silent when no daemon answers.
            local ids
            ids=$(fabricctl arenas --json 2>/dev/null |
                  grep -o '"id":[0-9]*' | cut -d: -f2)
            mapfile -t COMPREPLY < <(compgen -W "$ids" -- "$word"); return ;;
        --count | --last | --set | --wait | --ranks | --slow-motion) return ;;
        --emulate)
            mapfile -t COMPREPLY < <(compgen -W "$(fabricd --emulate list 2>/dev/null |
                                                   tail -n +2 | cut -d' ' -f1)" -f -- "$word")
            return ;;
        --file) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --output) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    esac
    local options="--help"
    case $command in
        "") options="$commands --help --version" ;;
        discover) options="--json --help" ;;
        tune) options="--ranks --output --emulate --slow-motion --quick --json --help" ;;
        vgpus | vgpu-resize | vgpu-share) options="--json --socket --help" ;;
        decisions) options="--last --json --socket --help" ;;
        why) options="--json --socket --help" ;;
        replay) options="--set --json --help"
                [[ $word != -* ]] && mapfile -t COMPREPLY < <(compgen -f -- "$word") && return ;;
        drain) options="--off --wait --json --socket --help" ;;
        shutdown) options="--wait --json --socket --help" ;;
        regions) options="--arena --watch --count --json --socket --help" ;;
        migrate) options="here arena: device: node: --limit --json --socket --help" ;;
        quota) options="--patience --json --socket --help" ;;
        devices) options="--file --watch --count --json --socket --help" ;;
        *) options="--watch --count --json --socket --help" ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
}
complete -F _fabricctl fabricctl
