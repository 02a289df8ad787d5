#include "core/data/jinja/template.h"

#include "core/base/status.h"
#include "core/data/jinja/evaluator.h"
#include "core/data/jinja/parser.h"

namespace shoal::jinja {

Template::Template(std::string name, std::unique_ptr<const ParsedTemplate> parsed)
    : name_(std::move(name)), parsed_(std::move(parsed)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

absl::StatusOr<Template> Template::Parse(std::string_view source, std::string name) {
  SHOAL_ASSIGN_OR_RETURN(ParsedTemplate parsed, ParseTemplate(source, name));
  return Template(std::move(name), std::make_unique<const ParsedTemplate>(std::move(parsed)));
}

absl::StatusOr<Text> Template::Render(const Variables& variables,
                                      const RenderOptions& options) const {
  return Evaluator(name_, options).Run(parsed_->body, variables);
}

bool Template::has_generation() const { return parsed_->has_generation; }

}  // namespace shoal::jinja
