// A device as the transport holds it open: its context, one protection domain, what it can do.
//
// One protection domain for all: weights are registered once however many clients read them. What
// keeps clients apart are memory windows, which give the right to write to one queue pair alone
// (queue_pair.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

 private:
  VerbsDevice(std::shared_ptr<VerbsApi> api, const DeviceDescription& description)
      : api_(std::move(api)), description_(description) {}
  const std::shared_ptr<VerbsApi> api_;
  const DeviceDescription description_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
};

// A status of the errno value with which something could not be made on a device. Where memory ran
// out, it says that the limit on locked memory may be why: queues and registered memory are locked.
absl::Status VerbsError(int error, const std::string& what);

}  // namespace shoal::transport
