// SPDX-License-Identifier: Apache-2.0
#include "core/util/svg.h"

#include <cstdint>
#include <cstdio>

namespace xylem {
namespace {

// Bytes of the UTF-8 character at text[at]; 0: none begins there.
size_t length_at(const std::string& text, size_t at) {
  const auto byte = uint8_t(text[at]);
  const size_t length = byte < 0x80 ? 1 : byte >= 0xc2 && byte < 0xe0 ? 2 : byte >= 0xe0 && byte < 0xf0 ? 3 : 4;
  if ((length == 4 && (byte < 0xf0 || byte > 0xf4)) || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((uint8_t(text[at + i]) & 0xc0) != 0x80) return 0;
  if (length < 3) return length;
  // Longer than needed, surrogates, beyond the last character, and the two that XML has not.
  const auto second = uint8_t(text[at + 1]);
  const bool wrong = (byte == 0xe0 && second < 0xa0) || (byte == 0xed && second >= 0xa0) ||
                     (byte == 0xf0 && second < 0x90) || (byte == 0xf4 && second >= 0x90) ||
                     (byte == 0xef && second == 0xbf && uint8_t(text[at + 2]) >= 0xbe);
  return wrong ? 0 : length;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = length_at(text, at);
    const char c = text[at];
    if (length == 0 || (length == 1 && (uint8_t(c) < 0x20 || c == 0x7f)))
      out += '?';
    else if (c == '<' || c == '>' || c == '&' || c == '"')
      out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : "&quot;";
    else
      out.append(text, at, length);
    at += length == 0 ? 1 : length;
  }
  return out;
}

std::string attribute(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + value + '"';
}
std::string attribute(const char* name, double value) { return attribute(name, svg_number(value)); }
std::string after_space(const std::string& more) { return more.empty() ? "" : ' ' + more; }
std::string pen(const std::string& stroke, double width, const std::string& more) {
  return attribute("stroke", stroke) + attribute("stroke-width", width) + after_space(more);
}

}  // namespace

std::string svg_number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", v);
  return text;
}

void SvgCanvas::rect(double x, double y, double width, double height, const std::string& fill,
                     const std::string& stroke, const std::string& more) {
  body_ += "<rect" + attribute("x", x) + attribute("y", y) + attribute("width", width) + attribute("height", height) +
           " rx=\"6\"" + attribute("fill", fill) + attribute("stroke", stroke) + after_space(more) + "/>\n";
}

void SvgCanvas::line(double x1, double y1, double x2, double y2, const std::string& stroke, double width,
                     const std::string& more) {
  body_ += "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) + attribute("y2", y2) +
           pen(stroke, width, more) + "/>\n";
}

void SvgCanvas::path(const std::string& d, const std::string& stroke, double width, const std::string& more) {
  body_ += "<path" + attribute("d", d) + " fill=\"none\"" + pen(stroke, width, more) + "/>\n";
}

void SvgCanvas::circle(double x, double y, double radius, const std::string& fill) {
  body_ +=
      "<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", radius) + attribute("fill", fill) + "/>\n";
}

void SvgCanvas::text(double x, double y, const std::string& words, const std::string& more, const std::string& fill) {
  body_ += "<text" + attribute("x", x) + attribute("y", y) + attribute("fill", fill) + after_space(more) + ">" +
           escaped(words) + "</text>\n";
}

std::string SvgCanvas::document(double width, double height) const {
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"" +
         attribute("width", width) + attribute("height", height) + " viewBox=\"0 0 " + svg_number(width) + " " +
         svg_number(height) + "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n" +
         "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" + body_ + "</svg>\n";
}

}  // namespace xylem
