// How fast records are sealed and opened by one core. `openssl speed -evp aes-128-gcm -bytes N` is
// the limit.
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/transport/tcp/record.h"

namespace shoal::transport {
namespace {

const std::string kSecret = std::string(kRecordSecretBytes, 'k');

// Argument: bytes of frames in a record.
void Seal(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<std::byte> frames(bytes);
  std::vector<std::byte> record(bytes + kRecordOverhead);
  const iovec part = {frames.data(), bytes};
  RecordSealer sealer(kSecret);
  for (auto _ : state) {
    benchmark::DoNotOptimize(sealer.Seal({&part, 1}, record.data()));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}

// Sealed for each, outside of what is timed.
void Open(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  constexpr int kRecords = 256;
  std::vector<std::byte> frames(bytes);
  const size_t size = bytes + kRecordOverhead;
  std::vector<std::byte> records(kRecords * size);
  const iovec part = {frames.data(), bytes};
  RecordSealer sealer(kSecret);
  RecordOpener opener(kSecret);
  for (auto _ : state) {
    state.PauseTiming();
    for (int i = 0; i < kRecords; ++i) {
      sealer.Seal({&part, 1}, records.data() + i * size);
    }
    state.ResumeTiming();
    for (int i = 0; i < kRecords; ++i) {  // with the copy that a socket makes
      std::memcpy(opener.Room().data(), records.data() + i * size, size);
      opener.Received(size);
      benchmark::DoNotOptimize(opener.Next());
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * kRecords * state.range(0));
}

BENCHMARK(Seal)->Arg(1 << 10)->Arg(16 << 10)->Arg(64 << 10);
BENCHMARK(Open)->Arg(1 << 10)->Arg(16 << 10)->Arg(64 << 10);

}  // namespace
}  // namespace shoal::transport

BENCHMARK_MAIN();
