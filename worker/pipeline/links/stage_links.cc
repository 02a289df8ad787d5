#include "worker/pipeline/links/stage_links.h"

#include "fmt/format.h"

namespace shoal::worker {

std::string NameOf(const StageMessage& message) {
  return fmt::format("the {} of chunk {} microbatch {}",
                     message.gradient ? "gradient" : "activation", message.chunk,
                     message.microbatch);
}

}  // namespace shoal::worker
