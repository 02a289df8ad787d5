#include "core/transport/rdma_flags.h"

#include "CLI/CLI.hpp"

namespace shoal::transport {

void AddRdmaFlags(CLI::App& app, RdmaFlags& flags) {
  app.add_option("--rdma-device", flags.devices,
                 "Device of the verbs transport on this machine, mlx5_0 or mlx5_0:2, several with "
                 "commas; overrides service.rdma.devices of the job")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--rdma-gid-index", flags.gid_index,
                 "Overrides service.rdma.gid_index of the job; -1: chosen")
      ->check(CLI::Range(-1, 255));
}

}  // namespace shoal::transport
