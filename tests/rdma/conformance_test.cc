// The contract of transport.h on real queue pairs.
#include "transport/registry.h"
#include "transport/testing/conformance.h"

namespace shoal::transport {
namespace {

std::unique_ptr<Transport> Make(const VerbsOptions& verbs) {
  TransportOptions options;
  options.verbs = verbs;
  return *CreateTransport("verbs", options);
}

std::unique_ptr<Transport> MakeDefault() { return Make({}); }
std::unique_ptr<Transport> MakeOneRail() { return Make({.max_rails = 1}); }
// Queues that fill up and operations in many pieces, each with a completion of its own.
std::unique_ptr<Transport> MakeNarrow() {
  return Make({.send_depth = 16,
               .inline_bytes = 0,
               .signal_interval = 1,
               .piece_bytes = 16384,
               .spread_bytes = 65536});
}

INSTANTIATE_TEST_SUITE_P(Verbs, ConformanceTest,
                         testing::Values(TransportUnderTest{"verbs", MakeDefault},
                                         TransportUnderTest{"one_rail", MakeOneRail},
                                         TransportUnderTest{"narrow", MakeNarrow}),
                         NameOf);

}  // namespace
}  // namespace shoal::transport
