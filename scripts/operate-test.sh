#!/usr/bin/env bash
# Tests of deploy/ and dashboards/: real containers, a real Prometheus, a real Slurm. Installs what
# it needs (Debian packages, and from PyPI into build/operate/venv); whatever it starts ends with
# it, and nothing of it is reached from other machines. What cannot be had here is skipped, with the
# reason.
#
#   scripts/operate-test.sh [--push | PART...]     (default: all)
#
# SHOAL_BIN: the folder of the programs (default: built here).
#
#   manifests   Kubernetes: every overlay builds, keeps to the schemas and to Pod Security
#   checkov     the same against checkov's rules, but for a list
#   units       systemd's units are valid
#   systemd     they run, in a container: processes are restarted and killed during a job
#   mistakes    what people get wrong when they deploy is one line each
#   image       the image: size, user, read-only root, two builds of one digest, what is in it
#   image-cuda  the image for GPUs: its CUDA libraries find all that they need
#   registry    the image is pushed to a registry and pulled; compose's images pinned by digest
#   metrics     what a real run serves, against promtool and docs/metrics.md
#   dashboards  the boards: as generated, checked, every panel answers in a real run
#   alerts      the alerts: unit tests; provoked, seen at a webhook, resolved
#   tls         certificates replaced in a run, which has the bits of plain text; who is refused
#   compose     the cluster of deploy/compose trains
#   slurm       a job is preempted, goes back into the queue and ends as an undisturbed one
#   kubernetes  deploy/kubernetes on a real Kubernetes: every pod is lost or replaced during a job.
#               Builds it first, which takes 7 to 11 minutes; SHOAL_KUBERNETES names the folder that
#               keeps what was built (default: build/operate/kubernetes)
#
#     --push      what fits in ten minutes, on a slow machine by skipping what would begin after
#                 eight: no Slurm, no Kubernetes, of alerts those that come in seconds
#                 (alerts-short)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/build.sh
work=$PWD/build/operate
export SHOAL_OPERATE_DEBIAN=$work/debian
python=$work/venv/bin/python
parts=(manifests checkov units systemd mistakes image image-cuda registry metrics dashboards alerts
  tls compose slurm kubernetes)
push=(manifests units mistakes metrics image compose dashboards tls alerts-short)
push_seconds=480  # after that none begins
part_seconds=480  # of one: what takes longer hangs

skip() {
  echo "SKIPPED: $*"
  exit 77
}

# Lists of packages that are there and may be old will do, until something cannot be had by them.
refresh_lists() { apt-get -q -o Acquire::Retries=3 update >/dev/null 2>&1 || true; }

# install PACKAGE...
install() {
  [ "$(id -u)" = 0 ] || skip "there is no root to install $*"
  apt-cache show "$1" >/dev/null 2>&1 || refresh_lists
  # Their services stay off: tests start their own.
  local how=(env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300
    -o Acquire::Retries=3 install -y --no-install-recommends "$@")
  "${how[@]}" >"$work/apt.log" 2>&1 || {
    refresh_lists
    "${how[@]}" >"$work/apt.log" 2>&1 || skip "$* cannot be installed (see $work/apt.log)"
  }
}

# need_installed PROGRAM PACKAGE...
need_installed() {
  command -v "$1" >/dev/null || install "${@:2}"
}

need_python() {
  python3 -c 'import ensurepip, venv' 2>/dev/null || install python3-venv
  [ -x "$work/venv/bin/pip" ] || python3 -m venv --clear "$work/venv"
  cat {dashboards,tests/operate}/requirements.txt >"$work/requirements.txt"
  cat "$work/requirements.txt" tests/operate/constraints.txt >"$work/wanted.txt"
  cmp -s "$work/wanted.txt" "$work/installed.txt" || {
    "$work/venv/bin/pip" install -q --retries 2 -r "$work/requirements.txt" \
      -c tests/operate/constraints.txt || skip "PyPI does not give all that tests want"
    mv "$work/wanted.txt" "$work/installed.txt"
  }
}

# need_debian PROGRAM PACKAGE...: unpacked, not installed, so that no service of theirs starts here
need_debian() {
  [ ! -x "$work/debian/usr/bin/$1" ] || return 0
  mkdir -p "$work/debian"
  download() {
    (cd "$work/debian" && apt-get -q -o Acquire::Retries=3 download "$@" >/dev/null 2>&1)
  }
  download "${@:2}" || {
    refresh_lists
    download "${@:2}" || skip "Debian's ${*:2} cannot be had (apt-get update?)"
  }
  for package in "$work/debian"/*.deb; do
    dpkg -x "$package" "$work/debian"
    rm "$package"
  done
}

# With kubectl, of PyPI where this machine has none.
need_kubectl() {
  need_python
  command -v kubectl >/dev/null || PATH=$work/venv/bin:$PATH
}

need_podman() {
  need_installed podman podman runc netavark aardvark-dns
  need_installed iptables iptables
  need_installed busybox busybox-static
  export CONTAINERS_CONF=$PWD/tests/operate/containers.conf
  # A container of one program, which this machine may forbid: it says so, no test of ours.
  local image=localhost/operate-probe:$$
  {
    tar -C "$(dirname "$(command -v busybox)")" -c busybox | podman import - "$image" &&
      podman run --rm "$image" /busybox true
  } >"$work/podman.log" 2>&1 || skip "podman runs nothing here: $(tail -n 1 "$work/podman.log")"
  podman rmi --force "$image" >/dev/null
}

part_manifests() {
  need_kubectl
  "$python" tests/operate/manifests.py
}
part_checkov() {
  need_kubectl
  [ -x "$work/checkov/bin/checkov" ] || {
    python3 -m venv "$work/checkov" # of its own: its dependencies are a hundred
    "$work/checkov/bin/pip" install -q --retries 2 checkov==3.3.30 ||
      skip "PyPI does not give checkov"
  }
  CHECKOV=$work/checkov/bin/checkov tests/operate/checkov.sh
}
part_units() {
  tests/operate/units.sh
}
part_systemd() {
  need_podman
  need_installed mmdebstrap mmdebstrap
  [ "$(id -u)" = 0 ] || skip "a systemd of a container takes root"
  tests/operate/systemd.sh
}
part_mistakes() {
  python3 tests/operate/mistakes.py
}
part_image() {
  need_python
  need_podman
  tests/operate/image.sh
}
part_image-cuda() {
  tests/operate/image_cuda.sh
}
part_metrics() {
  need_python
  need_debian promtool prometheus
  "$python" tests/operate/metrics.py
}
part_dashboards() {
  need_python
  need_debian prometheus prometheus
  "$python" tests/operate/dashboards.py
}
part_alerts() {
  need_python
  need_debian prometheus-alertmanager prometheus prometheus-alertmanager
  "$python" tests/operate/alerts.py "$@"
}
part_alerts-short() { part_alerts --short; }
part_tls() {
  need_installed openssl openssl
  python3 tests/operate/tls.py
}
part_compose() {
  need_python
  need_podman
  need_installed curl curl
  need_debian prometheus prometheus
  tests/operate/compose.sh
}
part_registry() {
  need_podman
  need_installed curl curl
  need_debian docker-registry docker-registry
  need_debian skopeo skopeo
  tests/operate/registry.sh
}
part_slurm() {
  need_installed slurmctld slurmctld slurmd slurm-client munge
  need_installed curl curl
  tests/operate/slurm.sh
}
part_kubernetes() {
  need_kubectl
  need_podman
  [ "$(id -u)" = 0 ] || skip "a node takes root"
  need_installed dpkg-source dpkg-dev
  need_installed etcd etcd-server
  need_installed containerd containerd runc
  need_installed conntrack conntrack
  [ -x /usr/lib/cni/bridge ] || install containernetworking-plugins
  local built
  built=$(tests/operate/kubernetes/build.sh "${SHOAL_KUBERNETES:-$work/kubernetes}")
  "$python" tests/operate/kubernetes.py "$built"
}

if [ "${1:-}" = --part ]; then
  # Programs as a build has them, for what packs them up.
  export SHOAL_BUILD=$work/build
  mkdir -p "$SHOAL_BUILD"
  ln -sfn "$SHOAL_BIN" "$SHOAL_BUILD/bin"
  "part_$2"
  exit
fi
limit=()
report=operate-all
if [ "${1:-}" = --push ]; then
  parts=("${push[@]}")
  limit=(timeout --kill-after=60 "$part_seconds")
  report=operate
elif [ $# -gt 0 ]; then
  parts=("$@")
fi
for part in "${parts[@]}"; do
  declare -F "part_$part" >/dev/null || {
    echo "unknown part $part" >&2
    sed -n '/^#   scripts/,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
  }
done
if [ -z "${SHOAL_BIN:-}" ]; then
  scripts/install-dependencies.sh
  configure release
  build release shoal shoal-coordinator shoal-server shoal-worker
  export SHOAL_BIN=$PWD/build/release/bin
fi
passed=0 failed=0 skipped=0 cases='' begin=$SECONDS
for part in "${parts[@]}"; do
  printf '\n== operate: %s\n' "$part"
  start=$SECONDS
  status=0
  if [ ${#limit[@]} -gt 0 ] && [ $((SECONDS - begin)) -gt "$push_seconds" ]; then
    echo "SKIPPED: $push_seconds s are over, which is when the last part of a push begins"
    status=77
  else
    ${limit[@]+"${limit[@]}"} "$0" --part "$part" || status=$?
  fi
  case $status in
    0) passed=$((passed + 1)) word=run ;;
    77) skipped=$((skipped + 1)) word=notrun ;;
    *) failed=$((failed + 1)) word=fail ;;
  esac
  cases+="<testcase name=\"$part\" time=\"$((SECONDS - start))\" status=\"$word\"/>"
  echo "$part: $((SECONDS - start)) s, status $status"
done
mkdir -p "$results"
echo "<testsuite>$cases</testsuite>" >"$results/$report.xml" # for scripts/test_report.py
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
[ "$passed" != 0 ] || exit 77
