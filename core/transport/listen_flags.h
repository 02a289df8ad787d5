// The flags that say where a server or worker is reached, the same in both programs.
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
  std::string advertise;               // HOST:PORT that others use; empty: same as `listen`
  int data_port = 0;                   // of the tcp transport

  // Returns the address that others use, with `port` where the flags name none.
  std::string AdvertisedAddress(int port) const;
  // Makes tcp listen on the same host.
  TransportOptions MakeTransportOptions() const;
};

void AddListenFlags(CLI::App& app, ListenFlags& flags);

// InvalidArgument if the flags leave others no address to call.
absl::Status Validate(const ListenFlags& flags);

}  // namespace shoal::transport
