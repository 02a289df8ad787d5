// An open device: its context, one protection domain, its capabilities.
//
// One protection domain for all connections: weights are registered once however many clients read
// them. Memory windows keep clients apart: each gives the right to write to a single queue pair
// (queue_pair.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/verbs/api.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

class VerbsDevice {
 public:
  static absl::StatusOr<std::shared_ptr<VerbsDevice>> Open(std::shared_ptr<VerbsApi> api,
                                                           const DeviceDescription& description);
  ~VerbsDevice();

  VerbsApi& api() const { return *api_; }
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const DeviceDescription& description() const { return description_; }
  const std::string& name() const { return description_.name; }
  bool IsSoftware() const { return description_.pci_path.empty(); }

  // Counts work that failed, by kind; not what is flushed because other work failed.
  void CountError(ibv_wc_status status) const ABSL_LOCKS_EXCLUDED(errors_mutex_);
  std::map<std::string, int64_t> errors() const ABSL_LOCKS_EXCLUDED(errors_mutex_);

 private:
  VerbsDevice(std::shared_ptr<VerbsApi> api, const DeviceDescription& description)
      : api_(std::move(api)), description_(description) {}
  const std::shared_ptr<VerbsApi> api_;
  const DeviceDescription description_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  mutable absl::Mutex errors_mutex_;
  mutable std::map<std::string, int64_t> errors_ ABSL_GUARDED_BY(errors_mutex_);
};

// Returns a status for the errno value with which a device refused to make something. Where memory
// ran out, it says that the limit on locked memory may be why: queues and registered memory are
// locked.
absl::Status VerbsError(int error, const std::string& what);

}  // namespace shoal::transport
