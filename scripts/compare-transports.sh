#!/usr/bin/env bash
# Shoal's transports beside other systems' own benchmark programs on this machine: for each size the
# medians of bandwidth and latency, and their ratios. Runs alternate, since machines drift.
#
#   scripts/compare-transports.sh [--transports shm,tcp,verbs] [--sizes 64K,1M,64M] [--runs 5]
#       [--seconds 0.1] [--shoal build/release/bin/shoal] [--device mlx5_0]
#
#   shm, tcp  ucx_perftest (package ucx-utils): gets. Open MPI (openmpi-bin) with osu_get_bw and
#             osu_get_latency of the OSU benchmarks, or else NPopenmpi (netpipe-openmpi), which
#             sends: a get is then taken for an empty request and a message.
#   verbs     perftest: ib_read_bw and ib_read_lat beside gets, ib_write_* beside pushes, which are
#             over when they have been acknowledged: a write of 64 bytes more.
#
# These programs move one buffer again and again, which caches hold, so Shoal walks through little
# memory here. Programs that are missing are left out, with a line that names their package. They
# poll without rest: on a machine whose cores are busy the comparison says nothing.
set -euo pipefail
export LC_ALL=C

transports=shm,tcp,verbs sizes=64K,1M,64M runs=5 seconds=0.1 device=
shoal=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/release/bin/shoal
while [ $# -ge 2 ]; do
  case $1 in
    --transports) transports=$2 ;;
    --sizes) sizes=$2 ;;
    --runs) runs=$2 ;;
    --seconds) seconds=$2 ;;
    --shoal) shoal=$2 ;;
    --device) device=$2 ;;
    *) break ;;
  esac
  shift 2
done
if [ $# -gt 0 ]; then
  sed -n '5,6s/^# *//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
if [ ! -x "$shoal" ]; then
  echo "$shoal is not there: cmake --build --preset release --target shoal" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
figures=$work/figures  # transport operation bytes system bytes-per-second latency-seconds

calculate() { awk "BEGIN { printf \"%.9g\", $* }"; }
record() {  # transport operation bytes system bandwidth latency
  echo "$*" >>"$figures"
}
has() {  # program package: whether it is there; says once that it is not
  command -v "$1" >/dev/null && return
  [ -e "$work/missing-$1" ] || echo "left out: $1 is not there (apt-get install $2)" >&2
  touch "$work/missing-$1"
  return 1
}

# Runs a command as server and, with this host's address added, as client; prints what that printed.
pair() {
  local port=$((20000 + RANDOM % 10000)) server status=1
  timeout 120 "$@" -p "$port" >"$work/server" 2>&1 &
  server=$!
  for _ in {1..100}; do
    sleep 0.1
    timeout 120 "$@" -p "$port" 127.0.0.1 >"$work/client" 2>&1 && status=0 && break
    kill -0 $server 2>/dev/null || break
  done
  kill $server 2>/dev/null || true
  wait $server 2>/dev/null || true
  [ $status = 0 ] || { echo "$*: $(tail -n 1 "$work/client")" >&2; return 1; }
  cat "$work/client"
}

ours() {  # transport bytes: records gets and pushes, sets `count` to operations for the others
  local line bandwidth
  # Four blocks in each of the four parts of the memory.
  "$shoal" bench transport --json --transports "$1" --sizes "$2" --clients 1 --runs 1 \
    --seconds "$seconds" --memory $((16 * $2)) >"$work/ours"
  while read -r line; do
    field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$line"; }
    bandwidth=$(field bytes_per_second)
    record "$1" "$(field operation)" "$2" shoal "$bandwidth" "$(field latency_seconds)"
    count=$(calculate "int($seconds * $bandwidth / $2)")
    count=$((count < 10 ? 10 : count > 20000 ? 20000 : count))
  done <"$work/ours"
}

ucx() {  # transport bytes
  has ucx_perftest ucx-utils || return 0
  local -x UCX_TLS=posix UCX_NET_DEVICES=all
  [ "$1" = shm ] || UCX_TLS=tcp UCX_NET_DEVICES=lo
  local test=(ucx_perftest -t ucp_get -s "$2" -n "$count" -w 10 -f -v) latency bandwidth
  # CSV: iterations, median, average and overall latency (us), average bandwidth (MiB/s), ...
  latency=$(pair "${test[@]}" | awk -F, '$1 + 0 > 0 { print $2 * 1e-6 }')
  bandwidth=$(pair "${test[@]}" -O 4 | awk -F, '$1 + 0 > 0 { print $5 * 1048576 }')
  record "$1" get "$2" ucx "$bandwidth" "$latency"
}

mpi() {  # transport program argument...
  local layer=(--mca btl "vader,self" --mca btl_vader_single_copy_mechanism none)
  [ "$1" = shm ] || layer=(--mca btl "tcp,self" --mca btl_tcp_if_include lo)
  # ob1 and not UCX beneath it.
  timeout 120 mpirun --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 \
    "${layer[@]}" -np 2 "${@:2}" 2>&1
}
netpipe() {  # transport bytes: bandwidth (2^20 bits a second) and seconds of a message one way
  mpi "$1" NPopenmpi -l "$2" -u "$2" -p 0 -o "$work/netpipe" >"$work/mpi" || cat "$work/mpi" >&2
  awk -v size="$2" '$1 == size { print $2, $3 }' "$work/netpipe"
}
openmpi() {  # transport bytes
  has mpirun openmpi-bin || return 0
  local bandwidth latency request
  if command -v osu_get_bw >/dev/null && command -v osu_get_latency >/dev/null; then
    bandwidth=$(mpi "$1" osu_get_bw -m "$2:$2" -i "$count" |
      awk -v size="$2" '$1 == size { print $2 * 1e6 }')
    latency=$(mpi "$1" osu_get_latency -m "$2:$2" -i "$count" |
      awk -v size="$2" '$1 == size { print $2 * 1e-6 }')
  else
    has NPopenmpi netpipe-openmpi || return 0
    read -r bandwidth latency < <(netpipe "$1" "$2")
    read -r _ request < <(netpipe "$1" 1)
    bandwidth=$(calculate "$bandwidth * 131072")
    latency=$(calculate "$latency + $request")
  fi
  record "$1" get "$2" openmpi "$bandwidth" "$latency"
}

perftest() {  # program bytes count argument...: the row beneath the heading
  pair "$1" -d "$device" -s "$2" -n "$3" -F "${@:4}" |
    awk 'header && NF >= 5 { print; exit } $1 == "#bytes" { header = 1 }'
}
# Small operations are better told by their rate: the average has two digits behind the point.
bandwidth_of() { awk '{ print $4 < 100 ? $5 * 1e6 * $1 : $4 * 1048576 }'; }
latency_of() { awk '{ print $5 * 1e-6 }'; }
rdma() {  # bytes
  has ib_read_bw perftest || return 0
  local bandwidth latency back
  bandwidth=$(perftest ib_read_bw "$1" "$count" -t 4 | bandwidth_of)
  latency=$(perftest ib_read_lat "$1" "$count" | latency_of)
  record verbs get "$1" perftest "$bandwidth" "$latency"
  bandwidth=$(perftest ib_write_bw "$1" "$count" -t 4 | bandwidth_of)
  latency=$(perftest ib_write_lat "$1" "$count" | latency_of)
  back=$(perftest ib_write_lat 64 1000 | latency_of)
  record verbs push "$1" perftest "$bandwidth" "$(calculate "$latency + $back")"
}

report() {
  sort -k1,1 -k2,2 -k3,3n -k4,4 "$figures" | awk '
    function median(list,    values, n, i, j, swap) {
      n = split(list, values, " ")
      for (i = 2; i <= n; ++i)
        for (j = i; j > 1 && values[j] + 0 < values[j - 1] + 0; --j) {
          swap = values[j]; values[j] = values[j - 1]; values[j - 1] = swap
        }
      return values[int((n + 1) / 2)]
    }
    { point = $1 " " $2 " " $3
      if (!($4 in seen)) { seen[$4]; systems[++system_count] = $4 }
      if (!(point in known)) { known[point]; points[++point_count] = point }
      bandwidths[point, $4] = bandwidths[point, $4] " " $5
      latencies[point, $4] = latencies[point, $4] " " $6 }
    END {
      printf "%-5s %-4s %9s | %-8s %8s %10s | %-8s %8s %10s | %9s %7s\n", "", "", "bytes", "",
        "GB/s", "us", "", "GB/s", "us", "bandwidth", "latency"
      for (p = 1; p <= point_count; ++p) {
        point = points[p]; split(point, words, " ")
        for (s = 1; s <= system_count; ++s) {
          system_name = systems[s]
          if (system_name == "shoal" || !((point, system_name) in bandwidths)) continue
          b = median(bandwidths[point, "shoal"]); l = median(latencies[point, "shoal"])
          tb = median(bandwidths[point, system_name]); tl = median(latencies[point, system_name])
          printf "%-5s %-4s %9d | %-8s %8.3f %10.2f | %-8s %8.3f %10.2f | %9.2f %7.2f\n",
            words[1], words[2], words[3], "shoal", b * 1e-9, l * 1e6, system_name, tb * 1e-9,
            tl * 1e6, b / tb, l / tl
        }
      }
      print "ratios of Shoal to the other: faster where bandwidth is above 1, latency below"
    }'
}

touch "$figures"
for transport in ${transports//,/ }; do
  if [ "$transport" = verbs ]; then
    [ -n "$device" ] || for path in /sys/class/infiniband/*; do
      [ ! -e "$path" ] || device=${device:-$(basename "$path")}
    done
    if [ -z "$device" ]; then
      echo "left out: verbs: there is no RDMA device" >&2
      continue
    fi
  fi
  for size in ${sizes//,/ }; do
    bytes=$(numfmt --from=iec "$size")
    for ((run = 0; run < runs; ++run)); do
      ours "$transport" "$bytes"
      if [ "$transport" = verbs ]; then
        rdma "$bytes"
      else
        ucx "$transport" "$bytes"
        openmpi "$transport" "$bytes"
      fi
    done
  done
done
report
