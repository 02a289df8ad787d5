#include "tests/simulation/faults.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/base/check.h"
#include "fmt/format.h"

namespace shoal::simulation {
namespace {

constexpr double kActivePoints = 0.25;

// A stream of numbers that costs next to nothing to begin (splitmix64).
class Stream {
 public:
  explicit Stream(uint64_t state) : state_(state) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Uniform() < probability; }
  Nanoseconds LogUniform(double low_seconds, double high_seconds) {
    return static_cast<Nanoseconds>(1e9 * low_seconds *
                                    std::pow(high_seconds / low_seconds, Uniform()));
  }

 private:
  uint64_t state_;
};

// A connection that is reset is noticed at once, one that is silent by its keep-alive.
Nanoseconds UntilNoticed(Stream& stream) {
  return stream.Chance(0.7) ? stream.LogUniform(1e-4, 0.05) : stream.LogUniform(10, 20);
}

uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

const char* NameOf(FaultKind kind) {
  static constexpr std::array<const char*, kFaultKinds> kNames = {
      "LoseRequest", "LoseReply", "Repeat", "Delay",    "Buggify",  "Kill", "PowerLoss",
      "Freeze",      "Jump",      "Drift",  "DiskFull", "DiskSlow", "Cut",  "Clog",
      "Stop",        "Succeed",   "Drain",  "Scale",    "Remove"};
  return kNames[static_cast<size_t>(kind)];
}

std::string ToCode(const Fault& fault) {
  return fmt::format("{{FaultKind::k{}, \"{}\", {}, {}}}", NameOf(fault.kind), fault.target,
                     fault.at, fault.amount == kNever ? "kNever" : fmt::to_string(fault.amount));
}

Faults::Faults(uint64_t seed, FaultOptions options)
    : seed_(seed), options_(std::move(options)), messages_(kMaxProcesses * kMaxProcesses) {
  moments_ = options_.moments;
  std::ranges::stable_sort(moments_, {}, &Fault::at);
}

Faults Faults::Draw(uint64_t seed, FaultOptions options) { return {seed, std::move(options)}; }

Faults Faults::FromList(uint64_t seed, std::vector<Fault> list) {
  Faults faults(seed, {});
  faults.from_list_ = true;
  for (Fault& fault : list) {
    if (IsOfMoment(fault.kind)) {
      faults.moments_.push_back(std::move(fault));
    } else {
      faults.occasions_[{fault.target, fault.at}].push_back(fault);
    }
  }
  std::ranges::stable_sort(faults.moments_, {}, &Fault::at);
  return faults;
}

uint64_t Faults::Hash(uint64_t a, uint64_t b) const {
  return Stream(seed_ * 0xd6e8feb86659fd93 + a * 0xa0761d6478bd642f + b * 0xe7037ed1a0b428db)
      .Next();
}

MessageFate Faults::OfMessage(int from, int to, const std::string& from_name,
                              const std::string& to_name, Nanoseconds now) {
  const auto link = static_cast<size_t>(from * kMaxProcesses + to);
  const int64_t n = ++messages_[link];
  Stream stream(Hash(link, static_cast<uint64_t>(n)));
  // A message or a short computation.
  MessageFate fate = {.delay = 100'000 + static_cast<Nanoseconds>(stream.Uniform() * 2'900'000)};
  std::vector<Fault> faults;
  const auto name = [&] { return from_name + ">" + to_name; };
  if (from_list_) {
    if (!occasions_.empty()) {
      const auto found = occasions_.find({name(), n});
      faults = found == occasions_.end() ? faults : found->second;
    }
  } else if (options_.messages.any() && now < options_.until) {
    const MessageRates& rates = options_.messages;
    const auto draw = [&](FaultKind kind, double rate, auto amount) {
      if (stream.Chance(rate)) {
        faults.push_back({kind, name(), n, amount()});
      }
    };
    draw(FaultKind::kLoseRequest, rates.lose_request, [&] { return UntilNoticed(stream); });
    draw(FaultKind::kLoseReply, rates.lose_reply, [&] { return UntilNoticed(stream); });
    draw(FaultKind::kRepeat, rates.repeat, [&] { return stream.LogUniform(1e-4, 5); });
    draw(FaultKind::kDelay, rates.delay, [&] { return stream.LogUniform(1e-3, 30); });
  }
  for (const Fault& fault : faults) {
    switch (fault.kind) {
      case FaultKind::kLoseRequest:
        fate.lose_request = fault.amount;
        break;
      case FaultKind::kLoseReply:
        fate.lose_reply = fault.amount;
        break;
      case FaultKind::kRepeat:
        fate.repeat = fault.amount;
        break;
      default:
        fate.delay += fault.amount;
    }
    Happened(fault);
  }
  return fate;
}

bool Faults::Fires(const char* point, Nanoseconds now) {
  auto found = points_.find(std::string_view(point));
  if (found == points_.end()) {
    Stream stream(Hash(HashOf(point), 0));
    found = points_.emplace(point, Point{.active = stream.Chance(kActivePoints)}).first;
  }
  const int64_t n = ++found->second.count;
  bool fires = false;
  if (from_list_) {
    fires = occasions_.contains({point, n});
  } else if (found->second.active && options_.buggify > 0 && now < options_.until) {
    fires = Stream(Hash(HashOf(point), static_cast<uint64_t>(n))).Chance(options_.buggify);
  }
  if (fires) {
    Happened({FaultKind::kBuggify, point, n, 0});
  }
  return fires;
}

}  // namespace shoal::simulation
