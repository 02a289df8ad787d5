#include "core/transport/listen_flags.h"

#include "CLI/CLI.hpp"
#include "core/base/net/address.h"
#include "core/base/status.h"

namespace shoal::transport {

std::string ListenFlags::AdvertisedAddress(int port) const {
  const std::string& address = advertise.empty() ? listen : advertise;
  const size_t colon = address.rfind(':');
  const bool has_port = colon != std::string::npos && address.substr(colon) != ":0";
  return has_port ? address : fmt::format("{}:{}", HostOf(address), port);
}

TransportOptions ListenFlags::MakeTransportOptions() const {
  TransportOptions options = {.listen_host = HostOf(listen), .listen_port = data_port};
  if (!advertise.empty()) {
    options.advertise_host = HostOf(advertise);
  }
  return options;
}

void AddListenFlags(CLI::App& app, ListenFlags& flags) {
  app.add_option("--listen", flags.listen, "HOST:PORT of the service; port 0 picks a free one")
      ->capture_default_str();
  app.add_option(
      "--advertise", flags.advertise,
      "HOST:PORT under which others reach it; needed where --listen has a wildcard host");
  app.add_option("--data-port", flags.data_port, "Port of the tcp transport; 0 picks a free one")
      ->capture_default_str();
}

absl::Status Validate(const ListenFlags& flags) {
  const std::string host = HostOf(flags.listen);
  if (flags.advertise.empty() && (host == "0.0.0.0" || host == "[::]")) {
    return InvalidArgument(
        "--listen {} takes any address; say with --advertise HOST:PORT under which one others "
        "reach this process",
        flags.listen);
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport
