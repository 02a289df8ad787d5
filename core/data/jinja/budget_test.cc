// What templates cost, in counts: each operator charges for what it does, and before it does it.
#include "core/data/jinja/budget.h"

#include <string>

#include "core/base/check.h"
#include "core/base/testing/status.h"
#include "core/base/utf8.h"
#include "core/data/jinja/template.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::jinja {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A text and its equal, one that ends otherwise, a mapping and a namespace with it as their key,
// and a list of as many elements.
Variables Sized(size_t size) {
  const std::string x(size, 'x');
  nlohmann::ordered_json numbers = nlohmann::ordered_json::array();
  for (size_t i = 0; i < size; ++i) {
    numbers.push_back(i % 2);
  }
  Variables variables;
  const nlohmann::ordered_json all = {{"x", x},        {"y", x},       {"z", x + "z"},
                                      {"m", {{x, 1}}}, {"l", numbers}, {"k", numbers}};
  for (const auto& [name, value] : all.items()) {
    variables.emplace_back(name, Value::FromJson(value, 1));
  }
  return variables;
}

absl::Status Render(std::string_view source, size_t size, const Limits& limits) {
  const auto parsed = Template::Parse(source, "t");
  return parsed.ok() ? parsed->Render(Sized(size), {.limits = limits, .now = {}}).status()
                     : parsed.status();
}

// The least limit with which it is rendered.
int64_t CostOf(std::string_view source, size_t size, int64_t Limits::*limit) {
  const auto parsed = Template::Parse(source, "t");
  SHOAL_CHECK(parsed.ok());
  const Variables variables = Sized(size);
  int64_t least = 0;
  for (int64_t bit = int64_t{1} << 28; bit > 0; bit /= 2) {
    RenderOptions options;
    options.limits.*limit = least + bit - 1;
    const absl::Status status = parsed->Render(variables, options).status();
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kResourceExhausted) << status;
    least += status.ok() ? 0 : bit;
  }
  return least;
}

struct Cost {
  const char* source;
  double steps;  // for 64 bytes of text, or an element
  double bytes;  // for a byte of text, or an element's bytes
};

TEST(JinjaBudget, EachOperatorCostsWhatItReadsAndMakesOfTexts) {
  constexpr size_t kSize = 6400;
  for (const Cost& cost : std::initializer_list<Cost>{
           {"{% set a = x %}", 0, 0},
           {"{% if x == y %}{% endif %}", 1, 0},
           {"{% if x == z %}{% endif %}", 0, 0},
           {"{% if x < y %}{% endif %}", 1, 0},
           {"{% if [x] == [y] %}{% endif %}", 1, 0},
           {"{% if x in [y] %}{% endif %}", 1, 0},
           {"{% if x in z %}{% endif %}", 2, 0},
           {"{% if 'y' in x %}{% endif %}", 1, 0},
           {"{% if x in m %}{% endif %}", 1, 0},
           {"{% set a = m[x] %}", 1, 0},
           {"{% set a = m.get(x) %}", 1, 0},
           {"{% if m == m %}{% endif %}", 1, 0},
           {"{% set a = {x: 1} %}", 1, 1},
           {"{% set a = dict(m) %}", 1, 1},
           {"{% set a = namespace(m) %}", 2, 2},
           {"{% set n = namespace() %}{% set a = n[x] %}", 1, 1},
           {"{% set a = m.keys() %}", 1, 1},
           {"{% set a = m.items() %}", 1, 1},
           {"{% set a = m.values() %}", 0, 0},
           {"{% set a = m | list %}", 1, 1},
           {"{% set a = x ~ y %}", 4, 4},
           {"{% set a = x * 3 %}", 3, 3},
           {"{% set a = x[0] %}", 0, 0},
           {"{% set a = x[-1] %}", 17, 0},
           {"{% set a = x[3:5] %}", 18, 1},
           {"{% set a = x[::-1] %}", 18, 1},
           {"{% set a = x | length %}", 1, 0},
           {"{% set a = x | list %}", 1 + 64 * 3.625, 128 + 40},
           {"{% set a = x | upper %}", 1 + 16 + 3, 1 + 3},
           {"{% if x is lower %}{% endif %}", 2 * 19, 2 * 3},
           {"{% set a = x.strip() %}", 1, 1},
           {"{% set a = x.strip('x') %}", 65, 1},
           {"{% set a = x.strip(y) %}", 64 * 301 + 1, 1},
           {"{% set a = x.startswith(y) %}", 1, 0},
           {"{% set a = x.split() %}", 17, 1},
           {"{% set a = x.split('y') %}", 2, 1},
           {"{% set a = x.split(y) %}", 3, 1},
           {"{% set a = x.rsplit(y) %}", 3, 3},
           {"{% set a = x.replace('y', '') %}", 2, 1},
           {"{% set a = x.replace('x', '') %}", 1 + 1 + 16, 1 + 16},
           {"{% set a = x.replace(y, '') %}", 3, 1},
           {"{% set a = x | replace('y', '') %}", 3, 2},
           {"{% set a = 'y'.replace('y', x) %}", 2, 2},
           {"{% set a = [x, y] | join %}", 4, 4},
           {"{% set a = [1, 2] | join(x) %}", 1 + 2, 1 + 2},
           {"{% set a = x | int %}", 2 * 18, 4},
           {"{% set a = [x] | string %}", 16 + 6, 6},
           {"{% set a = x | tojson %}", 16 + 6, 6},
           {"{% set a = m | tojson %}", 16 + 6, 6},
           {"{% set a = m | tojson(sort_keys=true) %}", 16 + 6 + 1, 6},
           {"{% set a = 1 | tojson(separators=(x, y)) %}", 4, 4},
           {"{% set a = [x, y] | sort %}", 2 * 19 + 1, 2 * 3},
           {"{% set a = [x, y] | unique %}", 2 * 19 + 1, 2 * 3},
           {"{% set a = [1] | map(attribute=x) %}", 2, 1},
           {"{{ x }}", 2, 2},
           {"{% set a %}{{ x }}{% endset %}", 2, 2},
           {"{% generation %}{{ x }}{% endgeneration %}", 5, 5},
       }) {
    const auto grows = [&](int64_t Limits::*limit) {
      return static_cast<double>(CostOf(cost.source, 2 * kSize, limit) -
                                 CostOf(cost.source, kSize, limit)) /
             static_cast<double>(kSize);
    };
    EXPECT_NEAR(64 * grows(&Limits::steps), cost.steps, 0.2 + 0.01 * cost.steps) << cost.source;
    EXPECT_NEAR(grows(&Limits::made_bytes), cost.bytes, 0.2) << cost.source;
  }
}

TEST(JinjaBudget, EachOperatorCostsWhatItReadsAndMakesOfLists) {
  constexpr size_t kSize = 1000;
  constexpr double kMade = 1 + sizeof(Value) / 64.0;  // steps of an element that is made
  for (const Cost& cost : std::initializer_list<Cost>{
           {"{% set a = l %}", 0, 0},
           {"{% if l == k %}{% endif %}", 1, 0},
           {"{% if l < k %}{% endif %}", 1, 0},
           {"{% if 2 in l %}{% endif %}", 1, 0},
           {"{% set a = l + k %}", 2 * kMade, 2},
           {"{% set a = l * 3 %}", 3 * kMade, 3},
           {"{% set a = l[1:] %}", kMade, 1},
           {"{% set a = l[::-1] %}", kMade, 1},
           {"{% set a = l | list %}", kMade, 1},
           {"{% set a = l | first %}", kMade, 1},
           {"{% set a = l | select %}", 2 * kMade, 2},
           {"{% set a = range(l | length) %}", kMade, 1},
           {"{% for i in l %}{% endfor %}", 2 * kMade + 5, 4},
           {"{% set a = l | string %}", 1, 32.0 / sizeof(Value)},
           {"{% set a = l | tojson %}", 1, 36.0 / sizeof(Value)},
       }) {
    const auto grows = [&](int64_t Limits::*limit) {
      return static_cast<double>(CostOf(cost.source, 2 * kSize, limit) -
                                 CostOf(cost.source, kSize, limit)) /
             static_cast<double>(kSize);
    };
    EXPECT_NEAR(grows(&Limits::steps), cost.steps, 0.1) << cost.source;
    EXPECT_NEAR(grows(&Limits::made_bytes) / sizeof(Value), cost.bytes, 0.05) << cost.source;
  }
}

TEST(JinjaBudget, RoundingCostsWhatItsDigitsDo) {
  const auto steps = [](const char* source) { return CostOf(source, 1, &Limits::steps); };
  EXPECT_EQ(steps("{{ 1e300 | round(330) }}") - steps("{{ 1e300 | round(330, 'ceil') }}"), 64 - 1);
}

// What would take more memory or time than there is would not end, if it were not refused before.
TEST(JinjaBudget, PricesArePaidBeforeTheWork) {
  for (const char* source : {
           "{{ 'x' * 999999999999 }}",
           "{{ [1] * 999999999999 }}",
           "{{ x * 999999999999999999 }}",
           "{{ range(9000000000000000000) }}",
           "{{ range(-9000000000000000000, 9000000000000000000) }}",
           "{{ range(9000000000000000000, -9000000000000000000, -1) }}",
           "{{ (x * 100).replace('x', x) }}",
           "{{ (x * 100).replace('', x) }}",
           "{{ l | join(x * 100) }}",
           "{{ range(99999) | list | tojson(separators=(x, x)) }}",
           "{{ (x * 1000) | list }}",
           "{{ (x * 10000) | tojson }}",
           "{{ (x * 10000).strip('x' ~ x) }}",
       }) {
    const absl::Status status = Render(source, 20000, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << source << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("t:1: more than ")) << source;
    EXPECT_THAT(std::string(status.message()), EndsWith("; does a loop grow without end?"));
  }
}

TEST(JinjaBudget, LoopsAndNestingAreBounded) {
  const auto refused = [](std::string_view source) {
    return Render(source, 1, {}).code() == absl::StatusCode::kResourceExhausted;
  };
  EXPECT_TRUE(
      refused("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"));
  EXPECT_TRUE(
      refused("{% set n = namespace(x='xxxxxxxxxx') %}{% for i in range(40) %}"
              "{% set n.x = n.x + n.x %}{% endfor %}"));
  EXPECT_TRUE(refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"));
  // Each list holds the one before it twice: 2^100 elements to compare, print and sort.
  const std::string twice =
      "{% set n = namespace(x=[], y=[]) %}{% for i in range(100) %}{% set n.x = [n.x, n.x] %}"
      "{% set n.y = [n.y, n.y] %}{% endfor %}";
  for (const char* source :
       {"{% if n.x == n.y %}{% endif %}", "{% if n.x < n.y %}{% endif %}", "{{ n.x }}",
        "{{ n.x | tojson }}", "{{ [n.x, n.y] | sort }}", "{{ [n.x, n.y] | unique }}"}) {
    EXPECT_TRUE(refused(twice + source)) << source;
  }
  EXPECT_FALSE(Render("{% set n = namespace(x=[]) %}{% for i in range(900) %}{% set n.x = [n.x] %}"
                      "{% endfor %}{{ n.x }}",
                      1, {})
                   .ok());
}

// Names are looked for one after the other, in each scope around.
TEST(JinjaBudget, LooksForNamesCostAsManyAsThereAre) {
  std::string names;
  std::string parameters;
  std::string arguments;
  for (int i = 0; i < 1600; ++i) {
    names += fmt::format("{{% set x{} = 1 %}}", i);
    parameters += fmt::format("{}a{}=1", i > 0 ? ", " : "", i);
    arguments += fmt::format("{}a{}=1", i > 0 ? ", " : "", 1599 - i);
  }
  const auto steps = [](const std::string& source) { return CostOf(source, 1, &Limits::steps); };
  EXPECT_NEAR(steps(names + "{{ w }}") - steps(names + "{{ 1 }}"), 100, 10);
  EXPECT_NEAR(steps(names + "{% set w = 1 %}") - steps("{% set w = 1 %}"), 1600 * 53, 1600 * 4);
  const std::string macro = "{% macro f(" + parameters + ") %}{% endmacro %}";
  EXPECT_GT(steps(macro + "{{ f(" + arguments + ") }}"), 1600 * 1600 / 8);
}

TEST(JinjaBudget, SearchesAreLinearWhateverIsSearchedFor) {
  const auto parsed = Template::Parse(
      "{% set part = 'x' * 100000 ~ 'y' %}{% set all = 'x' * 800000 ~ part ~ 'x' %}"
      "{{ part in all }} {{ 'y' ~ part in all }} {{ all.split(part)[1] }}"
      "{{ all.rsplit(part) | length }} {{ all.replace(part, '') | length }} "
      "{{ 'aaaaa'.split('aa') }} {{ 'aaaaa'.rsplit('aa') }} {{ 'aaaaa'.rsplit('aa', 1) }} "
      "{{ 'a-b-c'.rsplit('-', 1) }}",
      "t");
  ASSERT_OK(parsed.status());
  const auto text = parsed->Render({}, {});
  ASSERT_OK(text.status());
  EXPECT_EQ(text->str(),
            "True False x2 800001 ['', '', 'a'] ['a', '', ''] ['aaa', ''] ['a-b', 'c']");
}

TEST(JinjaBudget, SourcesAreBounded) {
  const auto says = [](const std::string& source) {
    return std::string(Render(source, 1, {}).message());
  };
  EXPECT_EQ(says(std::string((1 << 20) + 1, 'a')),
            "t: a template of 1048577 bytes; at most 1048576 are read");
  EXPECT_EQ(says("\n{{ " + std::string(201, 'a') + " }}"), "t:2: a name of more than 200 bytes");
  ASSERT_OK(Render("{{ " + std::string(200, 'a') + " }}", 1, {}));
  std::string maps = "{{ 'x' | map('map'";
  for (int i = 0; i < 20000; ++i) {
    maps += ", 'map'";
  }
  EXPECT_THAT(says(maps + ") }}"), HasSubstr("map cannot call map"));
  const std::string brackets(100000, '(');
  const std::string lists(100000, '[');
  const std::string nots = "{{ " + std::string(100000, '-') + "1 }}";
  std::string sum = "{{ 1";
  std::string ifs;
  for (int i = 0; i < 100000; ++i) {
    sum += "+1";
    ifs += "{% if 1 %}";
  }
  for (const std::string& source :
       {"{{ " + brackets + "1" + std::string(100000, ')') + " }}",
        "{{ " + lists + std::string(100000, ']') + " }}", nots, sum + " }}", ifs}) {
    EXPECT_THAT(says(source), HasSubstr("levels")) << source.substr(0, 20);
  }
}

TEST(JinjaBudget, MessagesAreOneShortLine) {
  const std::string name = "'a\\n' ~ 'é' * 1000";
  for (const std::string& source :
       {"{{ {}[" + name + "].x }}", "{{ range[" + name + "].x }}",
        "{% for i in [1] %}{{ loop[" + name + "].x }}{% endfor %}", "{{ [1] | map(" + name + ") }}",
        "{{ [1] | select(" + name + ") }}", "{{ raise_exception(" + name + ") }}",
        std::string("{{ 1 'a\\nb' }}"), "{{ 1 '" + std::string(1000, 'a') + "' }}"}) {
    const std::string message(Render(source, 1, {}).message());
    EXPECT_THAT(message, StartsWith("t:1: "));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400U) << message;
    EXPECT_FALSE(FirstInvalidUtf8(message).has_value()) << message;
  }
}

}  // namespace
}  // namespace shoal::jinja
