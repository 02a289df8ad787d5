// Checks the servers' kernels on a device against those of the CPU, bit for bit.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "bench/gpu_check/base/cpu_flat_kernels.h"
#include "bench/gpu_check/base/device_data.h"
#include "bench/gpu_check/parts/op_checks.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using worker::OpCheck;

template <typename T>
struct Array {
  std::vector<T> host;    // for the CPU's kernels
  worker::Buffer buffer;  // of the device

  T* data() const { return reinterpret_cast<T*>(buffer.data()); }
};

class FlatChecks {
 public:
  FlatChecks(worker::Device& device, worker::Stream& stream, const FlatKernels& under_test,
             uint64_t seed, int64_t count)
      : device_(device), stream_(stream), under_test_(under_test), random_(seed), count_(count) {}

  std::vector<OpCheck> Run() {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const std::string name(type == DType::kF32 ? "fp32" : "bf16");
      Check(fmt::format("AdamW {} {}", name, count_), [&] { return AdamW(type); });
      Check(fmt::format("Accumulate {} {}", name, count_), [&] { return Add(type); });
      Check(fmt::format("AccumulateExact {} {}", name, count_), [&] { return AddExact(type); });
    }
    Check(fmt::format("GradientStatistics fp32 {}", count_), [&] { return Statistics(); });
    return std::move(checks_);
  }

 private:
  void Check(const std::string& name, const std::function<absl::Status()>& run) {
    OpCheck check{.name = name};
    wrong_.clear();
    const absl::Status status = run();
    check.wrong = status.ok() ? wrong_ : std::string(Message(status));
    checks_.push_back(check);
  }

  template <typename T>
  absl::StatusOr<Array<T>> Put(std::vector<T> values) {
    Array<T> array;
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    SHOAL_ASSIGN_OR_RETURN(array.buffer, device_.Allocate(bytes));
    SHOAL_RETURN_IF_ERROR(CopyNow(stream_, array.data(), values.data(), bytes));
    array.host = std::move(values);
    return array;
  }
  absl::StatusOr<Array<float>> Normal(double deviation = 1) {
    return Put(NormalValues<float>(deviation));
  }
  template <typename T>
  std::vector<T> NormalValues(double deviation) {
    std::vector<T> values(static_cast<size_t>(count_));
    for (T& value : values) {
      value = T(static_cast<float>(random_.Normal() * deviation));
    }
    return values;
  }

  template <typename T>
  absl::StatusOr<std::vector<T>> Get(const Array<T>& array) {
    std::vector<T> values(array.host.size());
    SHOAL_RETURN_IF_ERROR(CopyNow(stream_, values.data(), array.data(),
                                  static_cast<int64_t>(values.size() * sizeof(T))));
    return values;
  }
  template <typename T>
  absl::Status Compare(const char* what, const Array<T>& array) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<T> found, Get(array));
    for (size_t i = 0; i < found.size() && wrong_.empty(); ++i) {
      if (std::memcmp(&found[i], &array.host[i], sizeof(T)) != 0) {
        wrong_ = fmt::format("element {} of {} has other bits than the CPU's", i, what);
      }
    }
    return absl::OkStatus();
  }

  absl::Status AdamW(DType type) {
    return type == DType::kF32 ? AdamWOf<float>(type) : AdamWOf<BFloat16>(type);
  }
  template <typename T>
  absl::Status AdamWOf(DType type) {
    SHOAL_ASSIGN_OR_RETURN(const Array<float> gradient, Normal());
    SHOAL_ASSIGN_OR_RETURN(Array<float> master, Normal());
    SHOAL_ASSIGN_OR_RETURN(Array<float> m, Normal(0.1));
    std::vector<float> squares = NormalValues<float>(0.1);
    for (float& value : squares) {
      value *= value;
    }
    SHOAL_ASSIGN_OR_RETURN(Array<float> v, Put(std::move(squares)));
    SHOAL_ASSIGN_OR_RETURN(Array<T> weights, Put(NormalValues<T>(1)));
    const server::UpdateScalars scalars = server::MakeUpdateScalars({}, 7, 3e-4, 0.73);
    SHOAL_RETURN_IF_ERROR(under_test_.AdamW(
        stream_, scalars,
        {gradient.data(), master.data(), m.data(), v.data(), weights.data(), type, count_}));
    SHOAL_RETURN_IF_ERROR(
        CpuFlatKernels().AdamW(stream_, scalars,
                               {gradient.host.data(), master.host.data(), m.host.data(),
                                v.host.data(), weights.host.data(), type, count_}));
    SHOAL_RETURN_IF_ERROR(Compare("the master weights", master));
    SHOAL_RETURN_IF_ERROR(Compare("m", m));
    SHOAL_RETURN_IF_ERROR(Compare("v", v));
    return Compare("the weights", weights);
  }

  absl::Status Add(DType type) {
    return type == DType::kF32 ? AddOf<float>(type) : AddOf<BFloat16>(type);
  }
  template <typename T>
  absl::Status AddOf(DType type) {
    SHOAL_ASSIGN_OR_RETURN(const Array<T> gradient, Put(NormalValues<T>(1)));
    SHOAL_ASSIGN_OR_RETURN(Array<float> sum, Normal());
    SHOAL_RETURN_IF_ERROR(under_test_.Add(stream_, gradient.data(), type, sum.data(), count_));
    SHOAL_RETURN_IF_ERROR(
        CpuFlatKernels().Add(stream_, gradient.host.data(), type, sum.host.data(), count_));
    return Compare("the sum", sum);
  }

  absl::Status AddExact(DType type) {
    return type == DType::kF32 ? AddExactOf<float>(type) : AddExactOf<BFloat16>(type);
  }
  template <typename T>
  absl::Status AddExactOf(DType type) {
    std::vector<T> values = NormalValues<T>(100);
    values[0] = T(std::numeric_limits<float>::quiet_NaN());
    values[values.size() / 2] = T(-2 * server::kExactMaxElement);
    SHOAL_ASSIGN_OR_RETURN(const Array<T> gradient, Put(std::move(values)));
    std::vector<int64_t> sums(static_cast<size_t>(count_));
    for (int64_t& sum : sums) {
      sum = random_.Between(-1000, 1000) << 35;
    }
    SHOAL_ASSIGN_OR_RETURN(Array<int64_t> sum, Put(std::move(sums)));
    SHOAL_ASSIGN_OR_RETURN(
        const Array<int64_t> refused,
        Put(std::vector<int64_t>(static_cast<size_t>(under_test_.RefusedCounts(count_)), 0)));
    int64_t expected_refused = 0;
    SHOAL_RETURN_IF_ERROR(
        under_test_.AddExact(stream_, gradient.data(), type, sum.data(), refused.data(), count_));
    SHOAL_RETURN_IF_ERROR(CpuFlatKernels().AddExact(stream_, gradient.host.data(), type,
                                                    sum.host.data(), &expected_refused, count_));
    SHOAL_RETURN_IF_ERROR(Compare("the exact sum", sum));
    SHOAL_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, Get(refused));
    const int64_t found = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (found != expected_refused && wrong_.empty()) {
      wrong_ = fmt::format("{} elements were refused, expected {}", found, expected_refused);
    }
    SHOAL_ASSIGN_OR_RETURN(Array<float> value, Normal());
    SHOAL_RETURN_IF_ERROR(under_test_.ExactToFloat(stream_, sum.data(), value.data(), count_));
    SHOAL_RETURN_IF_ERROR(
        CpuFlatKernels().ExactToFloat(stream_, sum.host.data(), value.host.data(), count_));
    return Compare("its values", value);
  }

  absl::Status Statistics() {
    SHOAL_ASSIGN_OR_RETURN(const Array<float> gradient, Normal());
    const int64_t chunks = (count_ + server::kReductionChunk - 1) / server::kReductionChunk;
    SHOAL_ASSIGN_OR_RETURN(
        Array<server::GradientStatistics> statistics,
        Put(std::vector<server::GradientStatistics>(static_cast<size_t>(chunks))));
    SHOAL_RETURN_IF_ERROR(
        under_test_.Statistics(stream_, gradient.data(), statistics.data(), count_));
    SHOAL_RETURN_IF_ERROR(
        CpuFlatKernels().Statistics(stream_, gradient.host.data(), statistics.host.data(), count_));
    return Compare("the statistics", statistics);
  }

  worker::Device& device_;
  worker::Stream& stream_;
  const FlatKernels& under_test_;
  Random random_;
  const int64_t count_;
  std::string wrong_;
  std::vector<OpCheck> checks_;
};

}  // namespace

std::vector<OpCheck> CheckFlatKernels(worker::Device& device, worker::Stream& stream,
                                      const FlatKernels& under_test, uint64_t seed, int64_t count) {
  return FlatChecks(device, stream, under_test, seed, count).Run();
}

}  // namespace shoal::bench
