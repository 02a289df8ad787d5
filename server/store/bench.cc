#include "server/store/bench.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/simd.h"
#include "core/base/status.h"
#include "core/base/threads/thread_pool.h"
#include "server/store/accumulate.h"
#include "server/store/optimizer.h"
#include "server/store/page_buffer.h"

namespace shoal::server {
namespace {

// The chunk in which the store hands out work.
constexpr int64_t kChunk = 16384;
// Arrays start this far apart beyond a whole number of pages, so that streams do not map to the
// same cache sets.
constexpr int64_t kStagger = 4096 + 256;

using Range = std::function<void(int64_t begin, int64_t end)>;

double SecondsOf(ThreadPool& pool, int64_t elements, const Range& body) {
  const auto start = std::chrono::steady_clock::now();
  pool.ParallelFor(elements, kChunk, body);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Arrays {
  PageBuffer memory;
  std::vector<float*> f32;  // five of them
  int64_t* i64 = nullptr;
};

absl::StatusOr<Arrays> Allocate(int64_t elements) {
  Arrays arrays;
  const int64_t f32_bytes = RoundUp(elements * 4, 4096) + kStagger;
  const int64_t i64_bytes = RoundUp(elements * 8, 4096) + kStagger;
  SHOAL_ASSIGN_OR_RETURN(arrays.memory, PageBuffer::Allocate(5 * f32_bytes + i64_bytes));
  for (int64_t i = 0; i < 5; ++i) {
    arrays.f32.push_back(arrays.memory.as<float>(i * f32_bytes));
  }
  arrays.i64 = arrays.memory.as<int64_t>(5 * f32_bytes);
  return arrays;
}

struct Triad {
  SHOAL_INLINE void Run(const float* __restrict b, const float* __restrict c, float scale,
                        float* __restrict a, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      a[i] = b[i] + scale * c[i];
    }
  }
};

struct Case {
  StoreBenchPoint point;
  Range body;
};

std::vector<Case> Cases(const Arrays& arrays) {
  const AccumulateKernels& accumulate = GetAccumulateKernels();
  const OptimizerKernels& adamw = GetAdamWKernels();
  float* const g = arrays.f32[0];
  float* const p = arrays.f32[1];
  float* const m = arrays.f32[2];
  float* const v = arrays.f32[3];
  float* const w = arrays.f32[4];
  auto* const g16 = reinterpret_cast<BFloat16*>(g);
  auto* const w16 = reinterpret_cast<BFloat16*>(w);
  int64_t* const sum = arrays.i64;
  const UpdateScalars scalars = MakeUpdateScalars({}, 10, 1e-3, 1.0);
  std::vector<Case> cases;
  const auto add = [&](const char* kernel, int64_t bytes, const char* formula, Range body) {
    cases.push_back(
        {{.kernel = kernel, .formula = formula, .bytes_per_element = bytes}, std::move(body)});
  };
  add("accumulate fp32", 12, "gradient 4 + sum 4 read, sum 4 written",
      [=, &accumulate](int64_t b, int64_t e) { accumulate.add_f32(g + b, p + b, e - b); });
  add("accumulate bf16", 10, "gradient 2 + sum 4 read, sum 4 written",
      [=, &accumulate](int64_t b, int64_t e) { accumulate.add_bf16(g16 + b, p + b, e - b); });
  add("accumulate exact fp32", 20, "gradient 4 + sum 8 read, sum 8 written",
      [=, &accumulate](int64_t b, int64_t e) { accumulate.add_exact_f32(g + b, sum + b, e - b); });
  add("first push fp32", 12, "gradient 4 read, sum 4 fetched and written",
      [=, &accumulate](int64_t b, int64_t e) { accumulate.set_f32(g + b, w + b, e - b); });
  add("adamw fp32 wire", 36,
      "gradient, p, m, v 16 read; p, m, v 12 written; wire 4 fetched and 4 written",
      [=, &adamw](int64_t b, int64_t e) {
        adamw.f32(scalars, g + b, p + b, m + b, v + b, w + b, e - b);
      });
  add("adamw bf16 wire", 32,
      "gradient, p, m, v 16 read; p, m, v 12 written; wire 2 fetched and 2 written",
      [=, &adamw](int64_t b, int64_t e) {
        adamw.bf16(scalars, g + b, p + b, m + b, v + b, w16 + b, e - b);
      });
  const auto packed = [](float* moment, int64_t element) {
    return reinterpret_cast<std::byte*>(moment) +
           plan::MomentsOf(plan::Optimizer::kAdamW8).ArrayBytes(element);
  };
  add("adamw8 bf16 wire", 21,
      "gradient, p 8, m, v 2.5 read; p 4, m, v 2.5 written; wire 2 fetched and 2 written",
      [=](int64_t b, int64_t e) {
        GetAdamW8Kernels().bf16(scalars, g + b, p + b, packed(m, b), packed(v, b), w16 + b, e - b);
      });
  add("lion bf16 wire", 24, "gradient, p, m 12 read; p, m 8 written; wire 2 fetched and 2 written",
      [=](int64_t b, int64_t e) {
        GetLionKernels().bf16(scalars, g + b, p + b, m + b, nullptr, w16 + b, e - b);
      });
  return cases;
}

}  // namespace

absl::StatusOr<StoreBenchReport> RunStoreBench(const StoreBenchOptions& options) {
  if (options.elements < kChunk || options.runs < 1 || options.threads < 0) {
    return InvalidArgument("the store's benchmark needs at least {} elements and one run", kChunk);
  }
  ThreadPool pool(options.threads);
  const int64_t elements = options.elements / plan::kPackedBlock * plan::kPackedBlock;
  SHOAL_ASSIGN_OR_RETURN(const Arrays arrays, Allocate(elements));
  // Touches every page on the threads that use it, with values in a normal range.
  SecondsOf(pool, elements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (float* array : arrays.f32) {
        array[i] = static_cast<float>(i % 1000 + 1) * 1e-3f;
      }
      arrays.i64[i] = i;
    }
  });
  StoreBenchReport report = {.threads = pool.threads(),
                             .elements = elements,
                             .kernel_width = std::string(Name(BestKernelWidth()))};
  const Range triad_body = [&](int64_t b, int64_t e) {
    Dispatch<Triad>(arrays.f32[0] + b, arrays.f32[1] + b, 1e-3f, arrays.f32[4] + b, e - b);
  };
  constexpr double kTriadBytes = 16;
  for (Case& c : Cases(arrays)) {
    std::vector<double> triad_seconds;
    std::vector<double> seconds;
    SecondsOf(pool, elements, c.body);  // warm-up
    for (int run = 0; run < options.runs; ++run) {
      triad_seconds.push_back(SecondsOf(pool, elements, triad_body));
      seconds.push_back(SecondsOf(pool, elements, c.body));
    }
    c.point.triad_bytes_per_second =
        kTriadBytes * static_cast<double>(elements) / Median(triad_seconds);
    c.point.bytes_per_second =
        static_cast<double>(c.point.bytes_per_element * elements) / Median(seconds);
    report.points.push_back(std::move(c.point));
  }
  return report;
}

std::string FormatStoreBenchTable(const StoreBenchReport& report) {
  std::string table = fmt::format(
      "{} threads, {} elements an array, {} kernels; triad: 12 bytes an element = b, c 8 read, a 4 "
      "written\n"
      "{:<24}{:>8}{:>12}{:>12}{:>8}  {}\n",
      report.threads, report.elements, report.kernel_width, "kernel", "B/elem", "GB/s",
      "triad GB/s", "ratio", "bytes");
  for (const StoreBenchPoint& point : report.points) {
    table += fmt::format("{:<24}{:>8}{:>12.2f}{:>12.2f}{:>8.2f}  {}\n", point.kernel,
                         point.bytes_per_element, point.bytes_per_second / 1e9,
                         point.triad_bytes_per_second / 1e9, point.ratio(), point.formula);
  }
  return table;
}

std::string FormatStoreBenchJson(const StoreBenchReport& report) {
  std::string lines;
  for (const StoreBenchPoint& point : report.points) {
    lines += fmt::format(
        R"({{"kernel":"{}","threads":{},"elements":{},"width":"{}","bytes_per_element":{},)"
        R"("formula":"{}","bytes_per_second":{:.0f},)"
        R"("triad_bytes_per_second":{:.0f},"ratio":{:.3f}}})"
        "\n",
        point.kernel, report.threads, report.elements, report.kernel_width, point.bytes_per_element,
        point.formula, point.bytes_per_second, point.triad_bytes_per_second, point.ratio());
  }
  return lines;
}

}  // namespace shoal::server
