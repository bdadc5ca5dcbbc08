//! Charts as SVG files: lines over a logarithmic axis.

use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::error::Error;
use std::path::PathBuf;

/// Names of lines, and their points in order.
pub type Lines = Vec<(String, Vec<(f64, f64)>)>;

const WIDTH: i32 = 980;
/// The room for the names of the lines, right of them.
const KEYS: i32 = 250;

pub struct Chart<'a> {
    /// Of the file, without its ending.
    pub name: &'a str,
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// Whether the vertical axis is logarithmic, too.
    pub log_y: bool,
}

impl Chart<'_> {
    /// Writes the file to `$BENCH_OUT`, and says where. A chart that cannot be made is no reason to
    /// lose figures.
    pub fn write(&self, lines: &Lines) {
        let dir = std::env::var("BENCH_OUT").unwrap_or_else(|_| "target/bench".into());
        let path = PathBuf::from(dir).join(format!("{}.svg", self.name));
        match self.try_write(&path, lines) {
            Ok(()) => println!("\nChart: `{}.svg`", self.name),
            Err(error) => eprintln!("{}: {error}", path.display()),
        }
    }

    fn try_write(&self, path: &PathBuf, lines: &Lines) -> Result<(), Box<dyn Error>> {
        std::fs::create_dir_all(path.parent().ok_or("no directory")?)?;
        let points = || lines.iter().flat_map(|(_, line)| line.iter().copied());
        let range = |of: fn((f64, f64)) -> f64| {
            let least = points().map(of).fold(f64::INFINITY, f64::min);
            let most = points().map(of).fold(f64::NEG_INFINITY, f64::max);
            (least, most)
        };
        let ((left, right), (low, high)) = (range(|point| point.0), range(|point| point.1));
        if !(left > 0.0 && right > left && high.is_finite()) {
            return Err("nothing to draw".into());
        }
        let area = SVGBackend::new(path, (WIDTH as u32, 480)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area);
        chart.caption(self.title, ("sans-serif", 20)).margin(12).margin_right(KEYS);
        chart.x_label_area_size(44).y_label_area_size(76);
        let x = (left..right * 1.05).log_scale();
        if self.log_y {
            let low = low.max(high / 1e7);
            self.draw(chart.build_cartesian_2d(x, (low * 0.8..high * 1.4).log_scale())?, lines)?;
        } else {
            let y: RangedCoordf64 = (0.0..high * 1.05).into();
            self.draw(chart.build_cartesian_2d(x, y)?, lines)?;
        }
        for (at, (name, _)) in lines.iter().enumerate() {
            let (x, y) = (WIDTH - KEYS + 14, 56 + 22 * at as i32);
            let dash = vec![(x, y), (x + 18, y)];
            area.draw(&PathElement::new(dash, Palette99::pick(at).stroke_width(3)))?;
            area.draw(&Text::new(name.as_str(), (x + 24, y - 7), ("sans-serif", 13)))?;
        }
        Ok(area.present()?)
    }

    fn draw<'a, X, Y>(
        &self,
        mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
        lines: &Lines,
    ) -> Result<(), Box<dyn Error>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let number = |value: &f64| match *value {
            value if value.abs() >= 1e6 => format!("{}M", value / 1e6),
            value if value.abs() >= 1e4 => format!("{}k", value / 1e3),
            value => format!("{}", (value * 1e4).round() / 1e4),
        };
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x).y_desc(self.y).light_line_style(WHITE.mix(0.0));
        mesh.x_label_formatter(&number).y_label_formatter(&number).draw()?;
        for (at, (_, points)) in lines.iter().enumerate() {
            let color = Palette99::pick(at).to_rgba();
            chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
            if points.len() <= 10 {
                let dots = points.iter().map(|point| Circle::new(*point, 3, color.filled()));
                chart.draw_series(dots)?;
            }
        }
        Ok(())
    }
}

/// Lines from a file of three columns that tabs separate: the line's name, x and y.
pub fn read(path: &str) -> Lines {
    let text = std::fs::read_to_string(path).expect("a file to draw");
    let mut lines = Lines::new();
    for row in text.lines() {
        let cells: Vec<&str> = row.split('\t').collect();
        let [name, x, y] = cells[..] else { panic!("not three columns: {row}") };
        let point = (x.parse().expect("a number"), y.parse().expect("a number"));
        match lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => line.1.push(point),
            None => lines.push((name.to_owned(), vec![point])),
        }
    }
    lines
}
