#include "core/job/job_document.h"

#include <algorithm>
#include <sstream>

#include "core/base/status.h"
#include "core/base/utf8.h"
#include "yaml-cpp/eventhandler.h"

namespace shoal::plan {
namespace {

// Where the last document began; of what is in it, nothing.
class DocumentStart final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  const YAML::Mark& mark() const { return mark_; }

 private:
  YAML::Mark mark_;
};

}  // namespace

absl::StatusOr<YAML::Node> LoadJobDocument(std::string_view text, const std::string& file_name) {
  if (const auto invalid = FirstInvalidUtf8(text); invalid.has_value()) {
    return InvalidArgument("{}:{}: not UTF-8", file_name,
                           1 + std::ranges::count(text.substr(0, *invalid), '\n'));
  }
  const std::string whole(text);
  std::istringstream stream(whole);
  YAML::Parser parser(stream);
  DocumentStart first;
  DocumentStart second;
  if (parser.HandleNextDocument(first) && parser.HandleNextDocument(second)) {
    // The parser (0.7) stays where it is at what can begin no document, say a comma, and would find
    // empty documents there for ever.
    if (first.mark().pos == second.mark().pos) {
      return InvalidArgument("{}:{}: not valid YAML: nothing can begin with what is in column {}",
                             file_name, first.mark().line + 1, first.mark().column + 1);
    }
    return InvalidArgument("{}:{}: a second YAML document, expected one", file_name,
                           second.mark().line + 1);
  }
  return YAML::Load(whole);
}

}  // namespace shoal::plan
