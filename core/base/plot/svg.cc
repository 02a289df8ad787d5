#include "core/base/plot/svg.h"

#include "fmt/format.h"

namespace shoal::plot {
namespace {

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string_view Dashes(bool dashed) { return dashed ? " stroke-dasharray=\"5 4\"" : ""; }

}  // namespace

Svg::Svg(double width, double height, std::string_view title) {
  text_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 "
      "{0:g} {1:g}\" font-family=\"system-ui, 'DejaVu Sans', Helvetica, sans-serif\" "
      "role=\"img\">\n<title>{2}</title>\n",
      width, height, Escaped(title));
  Rectangle({0, 0}, width, height, "#ffffff");
}

void Svg::Rectangle(Point corner, double width, double height, std::string_view fill,
                    std::string_view hint) {
  text_ +=
      fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"",
                  corner.x, corner.y, width, height, fill);
  text_ += hint.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", Escaped(hint));
}

void Svg::Line(Point from, Point to, std::string_view colour, double width, bool dashed) {
  text_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
      "stroke-width=\"{:g}\"{}/>\n",
      from.x, from.y, to.x, to.y, colour, width, Dashes(dashed));
}

void Svg::Polyline(const std::vector<Point>& points, std::string_view colour, double width,
                   bool dashed) {
  std::string list;
  for (const Point& point : points) {
    list += fmt::format("{}{:.1f},{:.1f}", list.empty() ? "" : " ", point.x, point.y);
  }
  text_ += fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" "
      "stroke-linejoin=\"round\"{}/>\n",
      list, colour, width, Dashes(dashed));
}

void Svg::Disc(Point centre, double radius, std::string_view colour) {
  text_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"{}\"/>\n", centre.x,
                       centre.y, radius, colour);
}

void Svg::Ring(Point centre, double radius, std::string_view colour) {
  text_ += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"#ffffff\" stroke=\"{}\" "
      "stroke-width=\"2\"/>\n",
      centre.x, centre.y, radius, colour);
}

void Svg::Text(Point place, std::string_view text, const TextStyle& style) {
  std::string turn;
  if (style.degrees != 0) {
    turn =
        fmt::format(" transform=\"rotate({:g} {:.1f} {:.1f})\"", style.degrees, place.x, place.y);
  }
  text_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" text-anchor=\"{}\" fill=\"{}\"{}{}>{}"
      "</text>\n",
      place.x, place.y, style.size, style.anchor, style.colour,
      style.bold ? " font-weight=\"600\"" : "", turn, Escaped(text));
}

}  // namespace shoal::plot
