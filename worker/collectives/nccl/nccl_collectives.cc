#include "worker/collectives/nccl/nccl_collectives.h"

#include <cstring>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/collectives/nccl/nccl_api.h"
#include "worker/collectives/nccl/nccl_communicator.h"
#include "worker/collectives/nccl/nccl_status.h"

namespace shoal::worker {
namespace {

// The first version with nonblocking communicators.
constexpr int kOldest = NCCL_VERSION(2, 14, 0);

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const Nccl& nccl, int version, const Device& device)
      : nccl_(nccl),
        version_(version),
        name_("NCCL " + NcclVersionName(version)),
        gpu_(NameGpu(GpuOf(device).pci_address)),
        device_(device) {}

  std::string_view name() const override { return name_; }
  int version() const override { return version_; }
  const std::string& gpu() const override { return gpu_; }

  absl::StatusOr<std::string> NewId() override {
    SHOAL_RETURN_IF_ERROR(MakeCurrent(device_));
    ncclUniqueId id;
    SHOAL_RETURN_IF_ERROR(
        ToStatus(nccl_, nccl_.get_unique_id(&id), nullptr, "making a communicator's id"));
    return std::string(id.internal, sizeof(id.internal));
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const CommunicatorOptions& options) override {
    return NcclCommunicator::Join(nccl_, device_, options);
  }

 private:
  const Nccl nccl_;
  const int version_;
  const std::string name_;
  const std::string gpu_;
  const Device& device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> OpenNccl(const Device& device) {
  SHOAL_ASSIGN_OR_RETURN(const Nccl nccl, LoadNccl());
  int version = 0;
  SHOAL_RETURN_IF_ERROR(
      ToStatus(nccl, nccl.get_version(&version), nullptr, "asking for its version"));
  if (version < kOldest) {
    return FailedPrecondition("NCCL {} is too old: install {} or newer", NcclVersionName(version),
                              NcclVersionName(kOldest));
  }
  return std::make_unique<NcclCollectives>(nccl, version, device);
}

}  // namespace shoal::worker
