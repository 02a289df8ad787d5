#include "transport/tcp/tcp_transport.h"

#include "transport/testing/conformance.h"

namespace shoal::transport {
namespace {

std::unique_ptr<Transport> Make() { return *CreateTcpTransport({}); }
std::unique_ptr<Transport> MakeThreaded() { return *CreateTcpTransport({.io_threads = 3}); }

INSTANTIATE_TEST_SUITE_P(Tcp, ConformanceTest,
                         testing::Values(TransportUnderTest{"tcp", Make},
                                         TransportUnderTest{"threaded", MakeThreaded}),
                         NameOf);

}  // namespace
}  // namespace shoal::transport
