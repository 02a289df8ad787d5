#include "core/plan/schedule/builders/copy_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <ranges>
#include <utility>

namespace shoal::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::max();

// The jobs of one device, each direction in its order.
struct Device {
  std::vector<size_t> offloads;  // by `ready`
  std::vector<size_t> reloads;   // by `due`
  size_t next_offload = 0;
  size_t next_reload = 0;
  double free = 0;  // when its stream is free; of two streams, the one for offloads
};

class Copies {
 public:
  Copies(std::span<const CopyJob> jobs, CopyStreams streams)
      : jobs_(jobs),
        streams_(streams),
        planned_(jobs.size()),
        ended_(jobs.size(), kNever),
        settled_(jobs.size(), false),
        by_due_(jobs.size()) {
    std::iota(by_due_.begin(), by_due_.end(), size_t{0});
    std::ranges::stable_sort(by_due_, {}, [&](size_t job) { return jobs[job].ready; });
    for (const size_t job : by_due_) {
      devices_[jobs[job].device].offloads.push_back(job);
    }
    std::ranges::stable_sort(by_due_, {}, [&](size_t job) { return jobs[job].due; });
    std::array<double, 2> behind = {kNever, kNever};
    for (const size_t job : std::views::reverse(by_due_)) {
      // Devices behind a switch reload one after the other, others independently.
      double& next = behind[streams.paired ? 0 : jobs[job].device];
      next = std::min(next, jobs[job].due) - jobs[job].reload;
      planned_[job].reload_begin = next;
    }
    for (const size_t job : by_due_) {
      devices_[jobs[job].device].reloads.push_back(job);
    }
  }

  std::vector<PlannedCopy> Run() {
    while (true) {
      std::array<double, 2> times = {NextTime(devices_[0]), NextTime(devices_[1])};
      if (std::min(times[0], times[1]) == kNever) {
        return std::move(planned_);
      }
      Step(devices_[times[1] < times[0] ? 1 : 0]);
    }
  }

 private:
  // Returns the time up to which nothing begins on the device; kNever: it is done. If a device has
  // two streams, all its reloads are as late as possible and need no walk.
  double NextTime(const Device& device) const {
    double time = kNever;
    if (device.next_offload < device.offloads.size()) {
      time = BeginOf(device, device.offloads[device.next_offload]);
    }
    if (!streams_.duplex && device.next_reload < device.reloads.size()) {
      time = std::min(time, planned_[device.reloads[device.next_reload]].reload_begin);
    }
    return time;
  }

  // Returns the first time at which the job's offload can begin.
  double BeginOf(const Device& device, size_t job) const {
    return std::max({device.free, jobs_[job].ready, offload_lane_});
  }

  void Step(Device& device) {
    double next_begin = kNever;
    if (device.next_offload < device.offloads.size()) {
      const size_t job = device.offloads[device.next_offload];
      next_begin = BeginOf(device, job);
      const double end = next_begin + jobs_[job].offload;
      if (settled_[job] || end > planned_[job].reload_begin + Rounding(end)) {
        settled_[job] = true;  // it stays on the device
        ++device.next_offload;
        return;
      }
      if (streams_.duplex || device.next_reload == device.reloads.size() ||
          end <= planned_[device.reloads[device.next_reload]].reload_begin + Rounding(end)) {
        planned_[job].moved = true;
        planned_[job].offload_begin = next_begin;
        ended_[job] = end;
        device.free = end;
        offload_lane_ = streams_.paired ? end : 0;
        ++device.next_offload;
        return;
      }
    }
    const size_t job = device.reloads[device.next_reload++];
    if (ended_[job] != kNever) {
      Reload(device, job, next_begin);
    }
    settled_[job] = true;  // reloaded, or due before its offload got a turn: it stays on the device
  }

  // Reloads earlier than necessary, so that it ends where the next offload, which does not fit
  // before it, can begin.
  void Reload(Device& device, size_t job, double next_offload_begin) {
    double& begin = planned_[job].reload_begin;
    const CopyJob& of = jobs_[job];
    const double wanted = std::min(begin, next_offload_begin - of.reload);
    const double early = std::max({device.free, ended_[job], wanted, reload_lane_});
    if (early < begin && !DelaysAnother(job, early + of.reload)) {
      begin = early;
    }
    device.free = begin + of.reload;
    reload_lane_ = streams_.paired ? std::max(reload_lane_, device.free) : 0;
  }

  // Whether a reload behind the same switch that is due before this one must begin before `end`.
  bool DelaysAnother(size_t job, double end) {
    if (!streams_.paired) {
      return false;
    }
    while (settled_[by_due_[next_due_]]) {
      ++next_due_;
    }
    const size_t first = by_due_[next_due_];
    return first != job && planned_[first].reload_begin + Rounding(end) < end;
  }

  std::span<const CopyJob> jobs_;
  CopyStreams streams_;
  std::vector<PlannedCopy> planned_;  // reloads as late as possible, until the walk has passed them
  std::vector<double> ended_;         // offloads
  std::vector<bool> settled_;
  std::vector<size_t> by_due_;
  size_t next_due_ = 0;
  std::array<Device, 2> devices_;
  double offload_lane_ = 0;  // when the switch is free, for devices that share one
  double reload_lane_ = 0;
};

}  // namespace

std::vector<PlannedCopy> PlanCopies(std::span<const CopyJob> jobs, CopyStreams streams) {
  return Copies(jobs, streams).Run();
}

}  // namespace shoal::plan
