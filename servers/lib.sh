# What the scripts beside it share; sourced, not run. Each of them says what it needs, how it is
# installed and how it starts; this knows ports, processes and their end.
#
# Kept true: whatever `up` has started is ended by `down`, by an `up` that fails, and by the next
# `up` in the same DIR; nothing else ever is. A process is ours if its number is in DIR and it still
# works in DIR: numbers are used again.
set -euo pipefail

name=$(basename "$0")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(dirname "$here")/target/tools
export AWS_ACCESS_KEY_ID=testkey AWS_SECRET_ACCESS_KEY=testsecret
bucket=dfq-test

fail() { echo "$name: $*" >&2; exit 1; }

# free N: as many ports that nobody listens on.
free() {
  python3 -c 'import socket, sys
ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(port.getsockname()[1] for port in ports))' "$1"
}

# Two that install the same at once must not.
alone() {
  mkdir -p "$tools"
  exec 9>"$tools/$name.lock"
  flock 9
}

# venv PACKAGE PROGRAM: a program from PyPI, in a place of its own.
venv() {
  alone
  [ ! -x "$tools/$name/bin/$2" ] || return 0
  rm -rf "$tools/$name"
  python3 -m venv "$tools/$name" && "$tools/$name/bin/pip" install -q --disable-pip-version-check "$1" ||
    fail "$1 cannot be installed from PyPI"
}

# start LIVES PROGRAM ARGS...: in the background, with its output in DIR/<program>.log; started again as
# often as it has lives.
start() {
  local program=${2##*/}
  setsid bash -c 'for ((life = 0; life < $0; life++)); do "$@"; sleep 0.2; done' "$@" \
    >>"$dir/$program.log" 2>&1 </dev/null 9>&- &
  echo $! >"$dir/$program.pid"
}

ours() { [ "$(readlink "/proc/$1/cwd" 2>/dev/null)" = "$dir" ]; }

end() {
  local file pid
  for file in "$dir"/*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    if [ -n "$pid" ] && ours "$pid"; then
      kill -9 -- "-$pid" 2>/dev/null || true
      while ours "$pid"; do sleep 0.05; done
    fi
    rm -f "$file"
  done
}

# Ready is who makes a bucket.
is_ready() { "$here/make-bucket" "http://127.0.0.1:$port" "$bucket" 2>"$dir/ready"; }

# all_alive: or it fails, with the last words of all.
all_alive() {
  local file
  for file in "$dir"/*.pid; do
    [ ! -e "$file" ] || ours "$(cat "$file")" ||
      { tail -n 10 "$dir"/*.log >&2; fail "$(basename "$file" .pid) has died"; }
  done
}

# Who has died will never be.
await() {
  for _ in $(seq 300); do
    all_alive
    ! is_ready || return 0
    sleep 0.1
  done
  fail "no answer: $(tail -n 1 "$dir/ready")"
}

# With DFQ_SERVER_OWNER set to a process id, what was started ends with that process, and DIR goes too.
end_with_owner() {
  [ -n "${DFQ_SERVER_OWNER:-}" ] || return 0
  (while kill -0 "$DFQ_SERVER_OWNER" 2>/dev/null; do sleep 1; done; end; cd /; rm -rf "$dir") </dev/null >/dev/null 2>&1 9>&- &
}

# main VERB DIR [PORT]: calls what the script defines, `install_it` and `start_it`.
main() {
  local usage="install | up DIR [PORT] | down DIR"
  case ${1:-} in
    install) install_it; return ;;
    up | down) [ -n "${2:-}" ] || fail "say $usage" ;;
    *) fail "say $usage" ;;
  esac
  mkdir -p "$2"
  dir=$(cd "$2" && pwd -P)
  end
  [ "$1" = up ] || return 0
  # Only a folder of our own making is emptied.
  [ -e "$dir/.$name" ] || [ -z "$(ls -A "$dir")" ] || fail "$2 is not empty, and not from an earlier run"
  find "$dir" -mindepth 1 -delete
  touch "$dir/.$name"
  # What is started here works in DIR from its first moment on.
  cd "$dir"
  trap end EXIT
  port=${3:-$(free 1)}
  start_it
  await
  trap - EXIT
  end_with_owner
  echo "http://127.0.0.1:$port"
}
