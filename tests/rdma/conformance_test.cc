// The contract of transport.h on real queue pairs.
#include "core/transport/testing/conformance.h"

#include "core/transport/registry/registry.h"

namespace shoal::transport {
namespace {

std::unique_ptr<Transport> Make(const VerbsOptions& verbs) {
  TransportOptions options;
  options.verbs = verbs;
  return *CreateTransport("verbs", options);
}

std::unique_ptr<Transport> MakeDefault() { return Make({}); }
std::unique_ptr<Transport> MakeOneRail() { return Make({.max_rails = 1}); }
// Operations in many pieces, each with a completion of its own, and nothing inline.
std::unique_ptr<Transport> MakeNarrow() {
  return Make(
      {.inline_bytes = 0, .signal_interval = 1, .piece_bytes = 16384, .spread_bytes = 65536});
}

INSTANTIATE_TEST_SUITE_P(Verbs, ConformanceTest,
                         testing::Values(TransportUnderTest{"verbs", MakeDefault},
                                         TransportUnderTest{"one_rail", MakeOneRail},
                                         TransportUnderTest{"narrow", MakeNarrow}),
                         NameOf);

}  // namespace
}  // namespace shoal::transport
