#include "core/job/job_schema.h"

#include "fmt/format.h"

namespace shoal::plan {
namespace {

using google::protobuf::Reflection;

void AddKeyFields(const google::protobuf::Descriptor& section, const std::string& prefix,
                  std::vector<KeyField>& keys) {
  for (int i = 0; i < section.field_count(); ++i) {
    const FieldDescriptor& field = *section.field(i);
    if (IsSection(field)) {
      AddKeyFields(*field.message_type(), prefix + field.name() + ".", keys);
    } else if (OptionsOf(field).kind() != proto::Key::EARLIER) {
      keys.push_back({prefix + field.name(), &field});
    }
  }
}

}  // namespace

const std::vector<KeyField>& KeyFields() {
  static const auto& all = *[] {
    auto* const keys = new std::vector<KeyField>;
    AddKeyFields(*proto::Job::descriptor(), "", *keys);
    return keys;
  }();
  return all;
}

std::vector<std::string> NamesIn(const Section& section) {
  std::vector<std::string> names;
  for (int i = 0; i < section.GetDescriptor()->field_count(); ++i) {
    if (const FieldDescriptor& field = *section.GetDescriptor()->field(i);
        OptionsOf(field).kind() != proto::Key::EARLIER) {
      names.push_back(field.name());
    }
  }
  return names;
}

const FieldDescriptor* FieldNamed(const Section& section, const std::string& name) {
  const FieldDescriptor* const field = section.GetDescriptor()->FindFieldByName(name);
  return field == nullptr || OptionsOf(*field).kind() == proto::Key::EARLIER ? nullptr : field;
}

bool IsSection(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated();
}

const proto::Key& OptionsOf(const FieldDescriptor& field) {
  return field.options().GetExtension(proto::key);
}

Section& SectionOf(Section& root, std::string_view path) {
  Section* section = &root;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
    const std::string name(path.substr(0, dot));
    section = section->GetReflection()->MutableMessage(
        section, section->GetDescriptor()->FindFieldByName(name));
    path.remove_prefix(dot + 1);
  }
  return *section;
}

void ForEachValue(const Section& section, const KeyVisitor& visit, const std::string& prefix) {
  const Reflection& reflection = *section.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(section, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = prefix + field->name();
    if (IsSection(*field)) {
      ForEachValue(reflection.GetMessage(section, field), visit, path + ".");
    } else {
      visit(path, section, *field);
    }
  }
}

std::vector<JobKey> JobKeys() {
  proto::Job defaults = ToMessage(Job());
  std::vector<JobKey> keys;
  for (const auto& [path, field] : KeyFields()) {
    const proto::Key& options = OptionsOf(*field);
    const Section& section = SectionOf(defaults, path);
    const bool said = field->is_repeated() || section.GetReflection()->HasField(section, field);
    keys.push_back({.path = path,
                    .type = TypeOf(*field),
                    .default_value = options.required() ? "required"
                                     : said             ? PrintValue(section, *field)
                                                        : "none",
                    .help = options.help()});
  }
  return keys;
}

std::string JobKeyTable() {
  std::string text = "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const JobKey& key : JobKeys()) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.path, key.type,
                        key.default_value == "required" || key.default_value == "none"
                            ? key.default_value
                            : "`" + key.default_value + "`",
                        key.help);
  }
  return text;
}

}  // namespace shoal::plan
