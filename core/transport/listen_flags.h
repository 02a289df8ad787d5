// Where a server or worker is reached: the flags that say so, the same in both programs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/transport/options.h"

namespace CLI {
class App;
}

namespace shoal::transport {

struct ListenFlags {
  std::string listen = "127.0.0.1:0";  // HOST:PORT of the gRPC service
  std::string advertise;               // HOST:PORT that others use; empty: as it listens
  int data_port = 0;                   // of the tcp transport

  // The address that others use, with the port that was found where none was named.
  std::string AdvertisedAddress(int port) const;
  // tcp listens on the same host.
  TransportOptions MakeTransportOptions() const;
};

void AddListenFlags(CLI::App& app, ListenFlags& flags);

// InvalidArgument where nobody could know at which address to call.
absl::Status Validate(const ListenFlags& flags);

}  // namespace shoal::transport
