// How the forms of a chat are called, in job files and on command lines.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "core/job/job.h"

namespace shoal::plan {

inline constexpr std::array<std::pair<std::string_view, Template>, 3> kTemplateNames = {
    {{"plain", Template::kPlain}, {"chatml", Template::kChatML}, {"llama3", Template::kLlama3}}};

constexpr std::string_view Name(Template chat_template) {
  return kTemplateNames[static_cast<size_t>(chat_template)].first;
}

}  // namespace shoal::plan
