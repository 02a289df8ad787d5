// Templates in the part of Jinja2 that chat templates of model folders use, rendered so that each
// character knows who wrote it.
//
// Statements: for, if, set, macro, filter, generation, raw, break, continue. White space as
// transformers has it. No files, no imports, no attributes of anything but data: a template is
// other people's code, so steps, text and nesting are bounded, and what it asks for beyond that is
// an error "NAME:LINE: ...".
//
// Immutable; threads may share one.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/jinja/budget.h"
#include "core/data/jinja/text.h"
#include "core/data/jinja/value.h"

namespace shoal::jinja {

struct ParsedTemplate;
using Variables = std::vector<std::pair<std::string, Value>>;

struct RenderOptions {
  Limits limits;
  std::tm now = {};  // what strftime_now tells
};

class Template {
 public:
  // `name` stands for it in messages, e.g. its file. InvalidArgument if it is none.
  static absl::StatusOr<Template> Parse(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // ResourceExhausted where a bound is met, InvalidArgument for all other mistakes, among them what
  // the template raises itself.
  absl::StatusOr<Text> Render(const Variables& variables, const RenderOptions& options) const;

  const std::string& name() const { return name_; }
  bool has_generation() const;  // {% generation %} stands in it

 private:
  Template(std::string name, std::unique_ptr<const ParsedTemplate> parsed);
  std::string name_;
  std::unique_ptr<const ParsedTemplate> parsed_;
};

}  // namespace shoal::jinja
