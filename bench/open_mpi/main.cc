// shoal-bench-mpi: how fast Open MPI moves blocks of bytes between two processes of one machine, in
// the manner of the OSU benchmarks, for `shoal bench transport --against openmpi` to run:
//
//   mpirun -np 2 shoal-bench-mpi BYTES SECONDS MEMORY_BYTES
//
// Rank 0 fetches from rank 1. Latency: an empty request, answered by one block. Throughput: blocks
// stream with one and with four receives posted, each from and into another block of memory; both
// sides walk through MEMORY_BYTES, so that nothing is found in a cache that would not be found by a
// transfer of fresh data. Prints one line of JSON.
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kFetcher = 0;
constexpr int kOwner = 1;
constexpr int kRequestTag = 1;
constexpr int kBlockTag = 2;
constexpr int kMostInFlight = 4;
constexpr int64_t kMostLatencySamples = 2000;

class Blocks {
 public:
  Blocks(int64_t bytes, int64_t memory)
      : bytes_(bytes),
        count_(std::max<int64_t>(memory / bytes, kMostInFlight)),
        memory_(static_cast<size_t>(count_ * bytes), 'm') {}
  char* operator[](int64_t index) { return memory_.data() + index % count_ * bytes_; }
  int size() const { return static_cast<int>(bytes_); }

 private:
  const int64_t bytes_;
  const int64_t count_;
  std::vector<char> memory_;
};

// Seconds of `count` blocks with that many in flight.
double Stream(int rank, Blocks& blocks, int64_t count, int in_flight) {
  std::vector<MPI_Request> requests(static_cast<size_t>(in_flight), MPI_REQUEST_NULL);
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int64_t i = 0; i < count; ++i) {
    MPI_Request& request = requests[static_cast<size_t>(i % in_flight)];
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (rank == kFetcher) {
      MPI_Irecv(blocks[i], blocks.size(), MPI_BYTE, kOwner, kBlockTag, MPI_COMM_WORLD, &request);
    } else {
      MPI_Isend(blocks[i], blocks.size(), MPI_BYTE, kFetcher, kBlockTag, MPI_COMM_WORLD, &request);
    }
  }
  MPI_Waitall(in_flight, requests.data(), MPI_STATUSES_IGNORE);
  return MPI_Wtime() - start;
}

// Bytes a second for about `seconds`.
double Throughput(int rank, Blocks& blocks, double seconds, int in_flight) {
  int64_t count = 2 * in_flight;
  for (double took = 0;;) {
    took = Stream(rank, blocks, count, in_flight);
    const double rate = static_cast<double>(count) * blocks.size() / took;
    int64_t next =
        took >= seconds / 2
            ? 0
            : std::max<int64_t>(count * 2,
                                static_cast<int64_t>(seconds * static_cast<double>(count) / took));
    MPI_Bcast(&next, 1, MPI_INT64_T, kFetcher, MPI_COMM_WORLD);
    if (next == 0) {
      return rate;
    }
    count = std::min(next, count * 64);
  }
}

// The median of fetches one at a time.
double Latency(int rank, Blocks& blocks, double seconds) {
  std::vector<double> samples;
  const double end = MPI_Wtime() + seconds;
  for (int64_t i = 0, more = 1; more != 0; ++i) {
    if (rank == kOwner) {
      MPI_Recv(&more, 1, MPI_INT64_T, kFetcher, kRequestTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(blocks[i], blocks.size(), MPI_BYTE, kFetcher, kBlockTag, MPI_COMM_WORLD);
      continue;
    }
    more = MPI_Wtime() < end && i + 1 < kMostLatencySamples ? 1 : 0;
    const double start = MPI_Wtime();
    MPI_Send(&more, 1, MPI_INT64_T, kOwner, kRequestTag, MPI_COMM_WORLD);
    MPI_Recv(blocks[i], blocks.size(), MPI_BYTE, kOwner, kBlockTag, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    samples.push_back(MPI_Wtime() - start);
  }
  std::sort(samples.begin(), samples.end());
  return samples.empty() ? 0 : samples[samples.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int64_t bytes = argc == 4 ? std::atoll(argv[1]) : 0;
  const double seconds = argc == 4 ? std::atof(argv[2]) : 0;
  const int64_t memory = argc == 4 ? std::atoll(argv[3]) : 0;
  if (ranks != 2 || bytes < 1 || bytes > INT32_MAX || seconds <= 0 || memory < 0) {
    if (rank == 0) {
      std::fprintf(stderr, "usage: mpirun -np 2 shoal-bench-mpi BYTES SECONDS MEMORY_BYTES\n");
    }
    MPI_Finalize();
    return 2;
  }
  Blocks blocks(bytes, memory);
  const double latency = Latency(rank, blocks, seconds);
  const double one = Throughput(rank, blocks, seconds, 1);
  const double four = Throughput(rank, blocks, seconds, kMostInFlight);
  if (rank == kFetcher) {
    std::printf(
        "{\"latency_seconds\": %.9g, \"bytes_per_second_1_in_flight\": %.9g, "
        "\"bytes_per_second_4_in_flight\": %.9g}\n",
        latency, one, four);
  }
  MPI_Finalize();
  return 0;
}
