#include "core/data/jinja/template.h"

#include <string>

#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::jinja {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Text> Rendered(std::string_view source, const char* json = "{}",
                              const RenderOptions& options = {}) {
  const auto parsed = Template::Parse(source, "m/chat_template.jinja");
  if (!parsed.ok()) {
    return parsed.status();
  }
  Variables variables;
  const auto data = nlohmann::ordered_json::parse(json);
  for (const auto& [name, value] : data.items()) {
    variables.emplace_back(name, Value::FromJson(value, 1));
  }
  return parsed->Render(variables, options);
}

std::string Of(std::string_view source, const char* json = "{}") {
  const auto text = Rendered(source, json);
  return text.ok() ? text->str() : "error: " + std::string(text.status().message());
}

TEST(Jinja, ExpressionsAreWorthWhatTheyAreInPython) {
  EXPECT_EQ(Of("{{ 1 + 2 * 3 - 4 // 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }}"),
            "6 -4 2 3.5 8");
  EXPECT_EQ(Of("{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ 1e16 }}"), "a1NoneTrue1.01e+16");
  EXPECT_EQ(Of("{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'b' in 'abc' }} {{ 4 not in [1, 2] }}"),
            "True False True True");
  EXPECT_EQ(Of("{{ 'x' if false }}|{{ 'x' if 1 else 'y' }}|{{ not 0 and 'z' or 'w' }}"), "|x|z");
  EXPECT_EQ(Of("{{ [1, 'a\\'b', none, (2,), {'k': 1.5}] }}"),
            "[1, \"a'b\", None, (2,), {'k': 1.5}]");
  EXPECT_EQ(Of("{{ 'abcde'[1:3] }} {{ 'abc'[::-1] }} {{ [1, 2, 3][-2:] }} {{ 'é你x'[1] }}"),
            "bc cba [2, 3] 你");
  EXPECT_EQ(Of("{{ true == 1 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ x == y }}"),
            "True True False True");
  EXPECT_EQ(Of("{{ m.a.b[1] }}{{ m['a'].get('c', 'none') }}{{ m.a.items() }}",
               R"({"m": {"a": {"b": [1, 2]}}})"),
            "2none[('b', [1, 2])]");
}

TEST(Jinja, WhiteSpaceIsTransformers) {
  EXPECT_EQ(Of("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(Of("a \n {%- if true -%} \n b \n {%- endif -%} \n c"), "abc");
  EXPECT_EQ(Of("  {%+ if true +%}\nx{% endif %}"), "  \nx");
  EXPECT_EQ(Of("{# one #}\n {# two #}\nx  {{ 1 }}\n"), "x  1");
  EXPECT_EQ(Of("x {#- y -#} z"), "xz");
  EXPECT_EQ(Of("a\r\nb{% raw %}{{ x }}\n{% endraw %}\nc"), "a\nb{{ x }}\nc");
  EXPECT_EQ(Of("{{ 'a' }}\n{{- 'b' -}}\n c"), "abc");
}

TEST(Jinja, StatementsScopeAsJinjaDoes) {
  EXPECT_EQ(
      Of("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}"),
      "2 3 1");
  EXPECT_EQ(
      Of("{% set n = namespace(x=0) %}{% for i in range(3) %}{% set n.x = n.x + i %}{% endfor %}"
         "{{ n.x }}"),
      "3");
  EXPECT_EQ(Of("{% if true %}{% set x = 5 %}{% endif %}{{ x }}"), "5");
  EXPECT_EQ(Of("{% for i in [1, 2, 3] if i != 2 %}{{ loop.index }}/{{ loop.length }}:{{ i }}"
               "{{ '' if loop.last else ',' }}{% else %}none{% endfor %}"),
            "1/2:1,2/2:3");
  EXPECT_EQ(Of("{% for i in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(Of("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}"
               "{% break %}{% endif %}{{ i }}{% endfor %}"),
            "02");
  EXPECT_EQ(Of("{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ g }}{% endmacro %}{% set g = 7 %}"
               "{{ f(1) }} {{ f(1, c=3) }}"),
            "1217 1237");
  EXPECT_EQ(Of("{% set t | upper %}a{{ 1 }}{% endset %}{{ t }}{% filter trim %} x {% endfilter %}"),
            "A1x");
  EXPECT_EQ(Of("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}"), "a1b2");
  EXPECT_EQ(Of("{% for x in [1, 2, 1] %}{{ loop.previtem }}{{ loop.cycle('a', 'b') }}{% endfor %}"),
            "a1b2a");
}

TEST(Jinja, MacrosOfInnerScopesOutliveThem) {
  EXPECT_EQ(Of("{% set n = namespace() %}{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}"
               "{% set n.f = f %}{% endfor %}{% for j in [5, 6] %}{{ n.f() }}{% endfor %}"),
            "22");
}

TEST(Jinja, FiltersAndMethods) {
  EXPECT_EQ(Of("{{ ' a ' | trim }}{{ 'ab' | upper | lower | title }}{{ 'aB c' | capitalize }}"),
            "aAbAb c");
  EXPECT_EQ(Of("{{ x | default('d') }}{{ '' | default('e', true) }}{{ none | d('f') }}"), "deNone");
  EXPECT_EQ(Of("{{ [3, 1, 2] | sort | join('-') }} {{ ['b', 'A'] | sort(reverse=true) }}"),
            "1-2-3 ['b', 'A']");
  EXPECT_EQ(Of("{{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }}"),
            "[('a', 2), ('b', 1)] [('b', 1), ('a', 2)]");
  EXPECT_EQ(
      Of("{{ m | map(attribute='r') | list }}{{ m | selectattr('r', 'eq', 'u') | list | length }}"
         "{{ m | rejectattr('r') | list }}{{ ['a'] | map('upper') | first }}",
         R"({"m": [{"r": "u"}, {"r": "v"}]})"),
      "['u', 'v']1[]A");
  EXPECT_EQ(
      Of("{{ '4' | int + '1.5' | float }} {{ 'x' | int(7) }} {{ 2.5 | round }} {{ -3 | abs }}"),
      "5.5 7 2.0 3");
  EXPECT_EQ(Of("{{ [1, 1, 2] | unique | list }} {{ [1, 2] | reverse | list }} {{ 'ab' | last }}"),
            "[1, 2] [2, 1] b");
  EXPECT_EQ(
      Of("{{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a,b,c'.rsplit(',', 1)[1] }}"),
      "['a', 'b,c'] ['a', 'b'] c");
  EXPECT_EQ(Of("{{ 'xxaxx'.strip('x') }}{{ 'xa'.lstrip('x') }}{{ 'ax'.rstrip('x') }}"), "aaa");
  EXPECT_EQ(Of("{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab' | replace('', '-') }}"), "bba-a-b-");
  EXPECT_EQ(Of("{{ 'abc'.startswith(('x', 'ab')) }}{{ 'abc'.endswith('c') }}"), "TrueTrue");
  EXPECT_EQ(
      Of("{{ x is defined }}{{ 1 is number }}{{ true is number }}{{ 'a' is sequence }}"
         "{{ {} is mapping }}{{ none is none }}{{ 4 is divisibleby 2 }}{{ 'a' is in ['a'] }}"),
      "FalseTrueTrueTrueTrueTrueTrueTrue");
}

TEST(Jinja, JsonIsPythons) {
  EXPECT_EQ(Of("{{ x | tojson }}", R"({"x": {"b": [1, 2.0, true, null], "a": "é\"\n<\u0001"}})"),
            R"({"b": [1, 2.0, true, null], "a": "é\"\n<\u0001"})");
  EXPECT_EQ(Of("{{ x | tojson(indent=2) }}", R"({"x": {"b": [1, {}], "a": []}})"),
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}");
  EXPECT_EQ(Of("{{ x | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
               R"({"x": {"b": "é🎉", "a": 1}})"),
            R"({"a":1,"b":"\u00e9\ud83c\udf89"})");
  EXPECT_EQ(Of("{{ 'args: ' + x }}", R"({"x": {"city": "Köln"}})"), R"(args: {"city": "Köln"})");
}

// As Jinja2 3.1.6 has them.
TEST(Jinja, SmallThingsAreJinjas) {
  EXPECT_EQ(Of("{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42.55 | round(1) }} "
               "{{ 42.55 | round(1, 'floor') }} {{ 42.4 | round(0, 'ceil') }} {{ -2.5 | round }}"),
            "2.0 4.0 2.67 42.5 42.5 43.0 -2.0");
  EXPECT_EQ(
      Of("{{ 42 | round }} {{ 1234 | round(-2) }} {{ 1250 | round(-2) }} {{ 1350 | round(-2) }} "
         "{{ -1251 | round(-2) }} {{ 5 | round(1, 'ceil') }} {{ true | round }} "
         "{{ 0.1 | round(20) }} {{ 1e300 | round(5) }}"),
      "42 1200 1200 1400 -1300 5.0 1 0.1 1e+300");
  EXPECT_THAT(Of("{{ 1 | round(0, 'up') }}"), HasSubstr("common, ceil or floor"));
  EXPECT_EQ(Of("{% for a in [1] %}{% for b in [1] %}{{ loop.depth }}{{ loop.depth0 }}"
               "{% endfor %}{% endfor %}"),
            "10");
  EXPECT_EQ(Of("{{ '+1.5' | float }} {{ '1_000.2_5' | float }} {{ '1_000' | int }} "
               "{{ '+f_f' | int(base=16) }} {{ '1__0' | int(7) }} {{ '_1' | int(7) }} "
               "{{ '+-1' | int(7) }} {{ '1_e5' | float }} {{ '' | int(7) }}"),
            "1.5 1000.25 1000 255 7 7 7 0.0 7");
  EXPECT_EQ(Of("{{ -0.0 }} {{ -x }} {{ -1 }} {{ -true }}", R"({"x": 0.0})"), "-0.0 -0.0 -1 -1");
  EXPECT_EQ(Of("{{ x | tojson(ensure_ascii=true) }}", "{\"x\": \"\x7f\\u0080\"}"),
            "\"\x7f\\u0080\"");
  EXPECT_EQ(Of("{% for i in range(4) %}{{ i }}{% set x %}{% if i == 1 %}{% break %}{% endif %}"
               "{% endset %}{% endfor %}"),
            "01");
  EXPECT_EQ(Of("{% for i in range(3) %}{% filter upper %}a{% if i == 1 %}{% continue %}{% endif %}"
               "{{ i }}{% endfilter %}{% endfor %}"),
            "A0A2");
  const char* words = R"({"x": "it's o'neil's foo-bar (baz) {q} [r] <s> a_b 3rd x2y"})";
  EXPECT_EQ(Of("{{ x | title }}", words), "It's O'neil's Foo-Bar (Baz) {Q} [R] <S> A_b 3rd X2y");
  EXPECT_EQ(Of("{{ x.title() }}", words), "It'S O'Neil'S Foo-Bar (Baz) {Q} [R] <S> A_B 3Rd X2Y");
  EXPECT_EQ(Of("{{ ['\\u200b', '\\u2028\\u3000\\xa0', '\\ue000', '\\U000e0001', '\\u0378', "
               "'\\U0001F991', 'é', '\\x7f', '\\xad'] }}"),
            "['\\u200b', '\\u2028\\u3000\\xa0', '\\ue000', '\\U000e0001', '\\u0378', "
            "'\U0001F991', 'é', '\\x7f', '\\xad']");
}

TEST(Jinja, EachCharacterKnowsWhoWroteIt) {
  const char* data = R"({"x": "  some <b>text</b>  "})";
  for (const char* source :
       {"<{{ x | trim }}>", "{{ '<' + x.strip() + '>' }}", "<{{ x.split() | join(' ') }}>",
        "{% macro f(y) %}<{{ y | trim }}>{% endmacro %}{{ f(x) }}",
        "{% set y %}{{ x }}{% endset %}<{{ y[2:-2] }}>",
        "<{% for c in x | trim %}{{ c }}{% endfor %}>"}) {
    SCOPED_TRACE(source);
    const auto text = Rendered(source, data);
    ASSERT_OK(text.status());
    ASSERT_EQ(text->str(), "<some <b>text</b>>");
    for (size_t i = 0; i < text->size(); ++i) {
      const bool outer = i == 0 || i + 1 == text->size();
      const bool joined = std::string_view(source).find("join") != std::string_view::npos && i == 5;
      EXPECT_EQ(text->OriginAt(i).source, outer || joined ? 0 : 1) << i;
    }
  }
  const auto json = Rendered("{{ x | tojson }}", R"({"x": ["a\"b"]})");
  ASSERT_EQ(json->str(), R"(["a\"b"])");
  EXPECT_EQ(json->OriginAt(1).source, 0);
  EXPECT_EQ(json->OriginAt(3).source, 1) << "an escape is its character's";
}

TEST(Jinja, GenerationIsMarked) {
  const auto text = Rendered("a{% generation %}b{{ 'c' }}{% endgeneration %}d");
  ASSERT_EQ(text->str(), "abcd");
  EXPECT_FALSE(text->OriginAt(0).generation);
  EXPECT_TRUE(text->OriginAt(1).generation);
  EXPECT_TRUE(text->OriginAt(2).generation);
  EXPECT_FALSE(text->OriginAt(3).generation);
}

TEST(Jinja, MistakesNameFileAndLine) {
  const auto says = [](const char* source) { return Of(source); };
  EXPECT_EQ(says("\n\n{{ 'x' | xmlattr }}"),
            "error: m/chat_template.jinja:3: filter 'xmlattr' is not supported");
  EXPECT_EQ(says("a\n{{ raise_exception('roles\nmust alternate') }}"),
            "error: m/chat_template.jinja:2: raise_exception: roles must alternate");
  EXPECT_THAT(says("{% include 'x' %}"), HasSubstr("jinja:1: tag 'include' is not supported"));
  EXPECT_THAT(says("{{ x.y.z }}"), HasSubstr(":1: 'x' is undefined"));
  EXPECT_THAT(says("{{ 'a'.format() }}"), HasSubstr("function 'format' is not supported"));
  EXPECT_THAT(says("{{ 1 is blue }}"), HasSubstr("test 'blue' is not supported"));
  EXPECT_THAT(says("{{ 'a' + 1 }}"), HasSubstr("+ does not take text and integer"));
  EXPECT_THAT(says("{% if x %}\n"), HasSubstr("{% endif %} is missing"));
  EXPECT_THAT(says("{{ x "), HasSubstr("a tag has no end"));
  EXPECT_THAT(says("{{ 'x }}"), HasSubstr("a text has no end"));
  EXPECT_THAT(says("{{ (1 }}"), HasSubstr(":1: "));
  EXPECT_THAT(says("{% break %}"), HasSubstr("break stands outside of a loop"));
  EXPECT_THAT(says("{{ 1 // 0 }}"), HasSubstr("division by zero"));
  EXPECT_THAT(says("{% set x.y = 1 %}"), HasSubstr("only attributes of a namespace"));
  EXPECT_THAT(says("{{ 99999999999999999999 }}"), HasSubstr("is too large"));
  EXPECT_THAT(says("{{ \xFF }}"), HasSubstr("not UTF-8"));
}

TEST(Jinja, NothingNamesWhatIsNotData) {
  for (const char* source :
       {"{{ ''.__class__ }}", "{{ {}.__class__.__mro__ }}", "{{ range.__globals__ }}",
        "{{ namespace().__init__ }}", "{{ self }}{{ cycler }}{{ lipsum }}"}) {
    const std::string text = Of(source);
    EXPECT_TRUE(text.empty() || text.starts_with("error: ")) << source << ": " << text;
  }
}

TEST(Jinja, StrftimeNowIsTheDayThatIsGiven) {
  RenderOptions options;
  options.now.tm_mday = 26;
  options.now.tm_mon = 6;
  options.now.tm_year = 124;
  EXPECT_EQ(Rendered("{{ strftime_now('%d %b %Y') }}", "{}", options)->str(), "26 Jul 2024");
}

// Each letter as Python has it.
TEST(Jinja, LettersChangeTheirCaseAsInPython) {
  const auto changed = [](const std::string& text, const std::string& filter) {
    return Of("{{ '" + text + "' | " + filter + " }}");
  };
  {
    const std::string letters =
        "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿŉǰǅǆǇİı";
    EXPECT_EQ(changed(letters, "upper"),
              "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞSSÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ÷ØÙÚÛÜÝÞŸʼNJ̌ǄǄǇİI");
    EXPECT_EQ(changed(letters, "lower"),
              "àáâãäåæçèéêëìíîïðñòóôõö×øùúûüýþßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿŉǰǆǆǉi̇ı");
  }
  {
    const std::string letters =
        "ΆΈΉΊΌΎΏΐΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩΪΫάέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώ";
    EXPECT_EQ(changed(letters, "upper"),
              "ΆΈΉΊΌΎΏΪ́ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩΪΫΆΈΉΊΫ́ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΣΤΥΦΧΨΩΪΫΌΎΏ");
    EXPECT_EQ(changed(letters, "lower"),
              "άέήίόύώΐαβγδεζηθικλμνξοπρστυφχψωϊϋάέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώ");
  }
  {
    const std::string letters =
        "ЀЁЂЃЄЅІЇЈЉЊЋЌЍЎЏАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯабвгдежзийклмнопрстуфхцчшщъыьэюяѐёђѓєѕіїјљ"
        "њћќѝўџ";
    EXPECT_EQ(changed(letters, "upper"),
              "ЀЁЂЃЄЅІЇЈЉЊЋЌЍЎЏАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯЀЁЂЃ"
              "ЄЅІЇЈЉЊЋЌЍЎЏ");
    EXPECT_EQ(changed(letters, "lower"),
              "ѐёђѓєѕіїјљњћќѝўџабвгдежзийклмнопрстуфхцчшщъыьэюяабвгдежзийклмнопрстуфхцчшщъыьэюяѐёђѓ"
              "єѕіїјљњћќѝўџ");
  }
  EXPECT_EQ(changed("ΟΔΟΣ", "lower"), "οδος");
  EXPECT_EQ(changed("ΣΑΣ. ΑΣ", "lower"), "σας. ας");
  EXPECT_EQ(changed("Σ", "lower"), "σ");
  EXPECT_EQ(changed("ΑΣΑ", "lower"), "ασα");
  EXPECT_EQ(changed("ΑΣ’Α", "lower"), "ασ’α");
  EXPECT_EQ(changed("ΑΣ ΣΑ", "lower"), "ας σα");
  EXPECT_EQ(changed("ßa", "capitalize"), "Ssa");
  EXPECT_EQ(Of("{{ 'ßa b'.title() }}"), "Ssa B");
  EXPECT_EQ(changed("ǆa", "capitalize"), "ǅa");
  EXPECT_EQ(Of("{{ 'ǆa b'.title() }}"), "ǅa B");
  EXPECT_EQ(changed("ŉa", "capitalize"), "ʼNa");
  EXPECT_EQ(Of("{{ 'ŉa b'.title() }}"), "ʼNa B");
  EXPECT_EQ(changed("ΐΣ", "capitalize"), "Ϊ́ς");
  EXPECT_EQ(Of("{{ 'ΐΣ b'.title() }}"), "Ϊ́ς B");
  EXPECT_EQ(changed("ßa", "title"), "SSa") << "of a filter";
}

}  // namespace
}  // namespace shoal::jinja
