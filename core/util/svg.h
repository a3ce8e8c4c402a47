// SPDX-License-Identifier: Apache-2.0
// A drawing in SVG. Coordinates are pixels from the upper left corner; colours are SVG's ("#2f6fb3", "black").
#pragma once
#include <string>

namespace xylem {

class SvgCanvas {
 public:
  // `more` is further attributes as SVG writes them: "text-anchor=\"middle\"".
  void rect(double x, double y, double width, double height, const std::string& fill, const std::string& stroke,
            const std::string& more = "");
  void line(double x1, double y1, double x2, double y2, const std::string& stroke, double width,
            const std::string& more = "");
  void path(const std::string& d, const std::string& stroke, double width, const std::string& more = "");  // not filled
  void circle(double x, double y, double radius, const std::string& fill);
  // `words` may hold anything: what XML reserves is escaped, control characters and bytes that are no UTF-8 become '?'.
  void text(double x, double y, const std::string& words, const std::string& more = "",
            const std::string& fill = "#1f2933");

  // The file, white behind what was drawn.
  std::string document(double width, double height) const;

 private:
  std::string body_;
};

std::string svg_number(double v);  // "12.5", with one digit behind the point

}  // namespace xylem
