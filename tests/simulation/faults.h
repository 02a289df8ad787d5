// What goes wrong in a simulation: drawn from a seed, or taken from a list. Whatever went wrong is
// listed, so that a run can be repeated from its list, and from a part of it.
//
// There are faults of a moment (a process is killed at a time), and faults of an occasion: the n-th
// message on a link, the n-th time that a point of the code is reached. Everything else that is
// random of a message (how long it takes) follows from the seed, its link and n alone, so that a
// list that is a little shorter gives a run that differs little.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "tests/simulation/event_loop.h"

namespace shoal::simulation {

enum class FaultKind {
  // Of a message on a link "worker-1>coordinator"; `at` is n.
  kLoseRequest,  // amount: nanoseconds until the caller knows that the connection broke
  kLoseReply,    // the same; what was asked for has happened
  kRepeat,       // it arrives twice; amount: nanoseconds between
  kDelay,        // amount: nanoseconds more
  // Of a named point; `at` is n.
  kBuggify,
  // Of a process; `at` is a time.
  kKill,       // amount: nanoseconds until it is started again; kNever: it is not
  kPowerLoss,  // the same, and its disk loses what was not synced
  kFreeze,     // amount: nanoseconds
  kJump,       // its clock does; amount: nanoseconds
  kDrift,      // its clock does; amount: parts per million
  kDiskFull,   // the coordinator's, or what a server writes checkpoints to; amount: nanoseconds
  kDiskSlow,
  // Of a link; `at` is a time.
  kCut,   // what is sent is lost; amount: nanoseconds
  kClog,  // what is sent waits; amount: nanoseconds
  // Of a job ("job-0"), by the command line.
  kStop,
  // Of the coordinator: another begins from what it recorded, while it runs on; amount: nanoseconds
  // until it is gone at the latest.
  kSucceed,
  // Of a worker or server: it is told to leave; amount: nanoseconds that a worker has for it.
  kDrain,
  // Of a job ("job-0"): it is to have `amount` servers.
  kScale,
  // Of a server: it is to go for good, by the command line.
  kRemove,
};
inline constexpr int kFaultKinds = static_cast<int>(FaultKind::kRemove) + 1;

const char* NameOf(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  std::string target;
  int64_t at = 0;
  int64_t amount = 0;

  bool operator==(const Fault&) const = default;
};

// As C++.
std::string ToCode(const Fault& fault);
inline bool IsOfMoment(FaultKind kind) { return kind >= FaultKind::kKill; }

// Of each message; 0: none.
struct MessageRates {
  double lose_request = 0;
  double lose_reply = 0;
  double repeat = 0;
  double delay = 0;
  bool any() const { return lose_request + lose_reply + repeat + delay > 0; }
};

struct FaultOptions {
  MessageRates messages;
  double buggify = 0;  // of the active points, each time
  std::vector<Fault> moments;
  Nanoseconds until = kNever;  // none after that
};

// What happens to a message.
struct MessageFate {
  Nanoseconds delay = 0;
  std::optional<Nanoseconds> lose_request;
  std::optional<Nanoseconds> lose_reply;
  std::optional<Nanoseconds> repeat;
};

class Faults {
 public:
  static Faults Draw(uint64_t seed, FaultOptions options);
  static Faults FromList(uint64_t seed, std::vector<Fault> list);

  // Faults of moments to come, in order of their time.
  const std::vector<Fault>& moments() const { return moments_; }
  // Of the next message between two processes.
  MessageFate OfMessage(int from, int to, const std::string& from_name, const std::string& to_name,
                        Nanoseconds now);
  // Whether the point misbehaves this time.
  bool Fires(const char* point, Nanoseconds now);
  void Happened(const Fault& fault) { log_.push_back(fault); }

  // What happened, in order.
  const std::vector<Fault>& log() const { return log_; }

  static constexpr int kMaxProcesses = 64;

 private:
  struct Point {
    bool active = false;
    int64_t count = 0;
  };
  using Occasion = std::pair<std::string, int64_t>;  // target, n

  Faults(uint64_t seed, FaultOptions options);
  uint64_t Hash(uint64_t a, uint64_t b) const;

  uint64_t seed_;
  FaultOptions options_;
  bool from_list_ = false;
  std::vector<Fault> moments_;
  std::map<Occasion, std::vector<Fault>> occasions_;  // of a list
  std::vector<int64_t> messages_;                     // by link
  std::map<std::string, Point, std::less<>> points_;
  std::vector<Fault> log_;
};

}  // namespace shoal::simulation
