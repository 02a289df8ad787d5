#include "core/plan/step/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "core/base/check.h"

namespace shoal::plan {
namespace {

constexpr size_t kWindow = 64;  // microbatches of one worker
// Weight of a microbatch relative to the next newer one of its worker: half after 23.
constexpr double kDecay = 0.97;
// One microbatch suffices to estimate how fast its worker is; this many of different lengths,
// spanning this factor, suffice to price others.
constexpr int64_t kEnoughMicrobatches = 12;
constexpr size_t kEnoughLengths = 4;
constexpr double kEnoughSpan = 1.5;
// A time more than this many times the expected one counts as that.
constexpr double kLongestSurprise = 3;
constexpr int kRounds = 12;
constexpr double kSettled = 1e-9;  // relative change of the speeds

using Triple = std::array<double, 3>;

struct Point {
  size_t worker = 0;
  double weight = 0;
  double seconds = 0;
  Triple features = {};  // 1, tokens, squared tokens
};

double Dot(const Triple& a, const Triple& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// The normal equations of the points, scaled so that the diagonal is 1.
struct Equations {
  std::array<Triple, 3> matrix = {};
  Triple right = {};
  Triple scale = {};
};

Equations Assemble(const std::vector<Point>& points, const std::vector<double>& speeds) {
  Equations equations;
  for (const Point& point : points) {
    Triple relative;  // what each coefficient contributes to prediction / seconds
    for (size_t i = 0; i < 3; ++i) {
      relative[i] = point.features[i] / (speeds[point.worker] * point.seconds);
    }
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) {
        equations.matrix[i][j] += point.weight * relative[i] * relative[j];
      }
      equations.right[i] += point.weight * relative[i];
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    equations.scale[i] = 1 / std::sqrt(equations.matrix[i][i]);
  }
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      equations.matrix[i][j] *= equations.scale[i] * equations.scale[j];
    }
    equations.right[i] *= equations.scale[i];
  }
  return equations;
}

// Solves for the coefficients in `chosen`, the others 0, by Gaussian elimination; nothing if the
// points cannot tell them apart.
std::optional<Triple> Solve(const Equations& equations, const std::vector<size_t>& chosen) {
  constexpr double kSingular = 1e-10;
  std::array<Triple, 3> a = equations.matrix;
  Triple b = equations.right;
  for (size_t k = 0; k < chosen.size(); ++k) {
    const size_t pivot = chosen[k];
    if (a[pivot][pivot] < kSingular) {
      return std::nullopt;
    }
    for (size_t l = k + 1; l < chosen.size(); ++l) {
      const size_t row = chosen[l];
      const double factor = a[row][pivot] / a[pivot][pivot];
      for (size_t m = k; m < chosen.size(); ++m) {
        a[row][chosen[m]] -= factor * a[pivot][chosen[m]];
      }
      b[row] -= factor * b[pivot];
    }
  }
  Triple solution = {};
  for (size_t k = chosen.size(); k-- > 0;) {
    double rest = b[chosen[k]];
    for (size_t l = k + 1; l < chosen.size(); ++l) {
      rest -= a[chosen[k]][chosen[l]] * solution[chosen[l]];
    }
    solution[chosen[k]] = rest / a[chosen[k]][chosen[k]];
  }
  return solution;
}

// Returns the best fitting coefficients that are not negative: tries all choices of which are 0 and
// takes the best whose solution is not negative. An additional term must pay for itself, or noise
// would fill all of them.
Triple FitCoefficients(const std::vector<Point>& points, const std::vector<double>& speeds) {
  static const std::array<std::vector<size_t>, 7> kChoices = {
      {{1}, {2}, {0}, {1, 2}, {0, 1}, {0, 2}, {0, 1, 2}}};
  constexpr double kGain = 1e-9;
  const Equations equations = Assemble(points, speeds);
  Triple best = {};
  double best_gain = 0;
  for (const std::vector<size_t>& chosen : kChoices) {
    const std::optional<Triple> solution = Solve(equations, chosen);
    if (!solution.has_value() ||
        std::any_of(chosen.begin(), chosen.end(), [&](size_t i) { return (*solution)[i] <= 0; })) {
      continue;
    }
    // How much lower the sum of squares is than with no term at all.
    const double gain = Dot(*solution, equations.right);
    if (gain > best_gain * (1 + kGain)) {
      best_gain = gain;
      best = *solution;
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    best[i] *= equations.scale[i];
  }
  return best;
}

// Returns predicted over measured time of each worker, with mean 1.
std::vector<double> FitSpeeds(const std::vector<Point>& points, const Triple& coefficients,
                              const std::vector<double>& before) {
  std::vector<double> predicted(before.size(), 0.0);
  std::vector<double> measured(before.size(), 0.0);
  for (const Point& point : points) {
    const double expected = Dot(coefficients, point.features);
    predicted[point.worker] += point.weight * expected;
    measured[point.worker] +=
        point.weight * std::min(point.seconds, kLongestSurprise * expected / before[point.worker]);
  }
  std::vector<double> speeds(before.size(), 1.0);
  double logarithms = 0;
  double known = 0;
  for (size_t worker = 0; worker < speeds.size(); ++worker) {
    if (measured[worker] > 0 && predicted[worker] > 0) {
      speeds[worker] = predicted[worker] / measured[worker];
      logarithms += std::log(speeds[worker]);
      known += 1;
    }
  }
  const double mean = known > 0 ? std::exp(logarithms / known) : 1.0;
  for (size_t worker = 0; worker < speeds.size(); ++worker) {
    speeds[worker] = measured[worker] > 0 ? speeds[worker] / mean : 1.0;
  }
  return speeds;
}

bool HasEnough(const std::vector<Point>& points) {
  std::set<double> lengths;
  for (const Point& point : points) {
    lengths.insert(point.features[1]);
  }
  return static_cast<int64_t>(points.size()) >= kEnoughMicrobatches &&
         lengths.size() >= kEnoughLengths && *lengths.rbegin() >= kEnoughSpan * *lengths.begin();
}

bool Settled(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](double x, double y) { return std::abs(x - y) <= kSettled * y; });
}

}  // namespace

CostFit::CostFit(int workers) : windows_(static_cast<size_t>(workers)) { SHOAL_CHECK(workers > 0); }

void CostFit::Add(const MeasuredMicrobatch& measured) {
  const auto tokens = static_cast<double>(measured.tokens);
  const bool sensible = measured.worker >= 0 &&
                        static_cast<size_t>(measured.worker) < windows_.size() &&
                        measured.tokens > 0 && measured.squared_tokens >= tokens &&
                        measured.squared_tokens <= tokens * tokens && measured.seconds > 0 &&
                        std::isfinite(measured.seconds);
  if (!sensible) {
    return;
  }
  auto& window = windows_[static_cast<size_t>(measured.worker)];
  window.push_back(measured);
  if (window.size() > kWindow) {
    window.pop_front();
  }
}

void CostFit::Renumber(const std::vector<int>& before) {
  std::vector<std::deque<MeasuredMicrobatch>> windows(before.size());
  for (size_t worker = 0; worker < before.size(); ++worker) {
    if (before[worker] >= 0) {
      windows[worker] = std::move(windows_[static_cast<size_t>(before[worker])]);
      for (MeasuredMicrobatch& measured : windows[worker]) {
        measured.worker = static_cast<int>(worker);
      }
    }
  }
  windows_ = std::move(windows);
}

FittedCosts CostFit::Fit() const {
  std::vector<Point> points;
  for (const auto& window : windows_) {
    double weight = 1;
    for (auto measured = window.rbegin(); measured != window.rend(); ++measured) {
      points.push_back(
          {.worker = static_cast<size_t>(measured->worker),
           .weight = weight,
           .seconds = measured->seconds,
           .features = {1.0, static_cast<double>(measured->tokens), measured->squared_tokens}});
      weight *= kDecay;
    }
  }
  FittedCosts fitted{.speeds = std::vector<double>(windows_.size(), 1.0),
                     .measured = static_cast<int64_t>(points.size())};
  if (points.empty()) {
    return fitted;
  }
  Triple coefficients = FitCoefficients(points, fitted.speeds);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> speeds = FitSpeeds(points, coefficients, fitted.speeds);
    const bool settled = Settled(speeds, fitted.speeds);
    fitted.speeds = std::move(speeds);
    coefficients = FitCoefficients(points, fitted.speeds);
    if (settled) {
      break;
    }
  }
  fitted.cost = {coefficients[0], coefficients[1], coefficients[2]};
  fitted.enough = HasEnough(points);
  return fitted;
}

}  // namespace shoal::plan
