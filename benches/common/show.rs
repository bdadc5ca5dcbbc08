//! Figures as Markdown: medians with their spread, tables, and bars that are met or missed.

/// Median, least and most of some figures.
pub fn spread(figures: impl IntoIterator<Item = f64>) -> (f64, f64, f64) {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[0], figures[figures.len() - 1])
}

pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    spread(figures).0
}

/// `median (least–most)`, with as many digits as mean something.
pub fn show(figures: impl IntoIterator<Item = f64>) -> String {
    let (median, least, most) = spread(figures);
    let digits = digits(median);
    format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
}

pub fn figure(figure: f64) -> String {
    format!("{figure:.*}", digits(figure))
}

fn digits(figure: f64) -> usize {
    match figure.abs() {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        size if size >= 0.01 => 3,
        _ => 5,
    }
}

/// A Markdown table that is readable as plain text, too.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "a cell for each head");
        self.rows.push(cells);
    }

    pub fn print(&self) {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|at| self.rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0))
            .collect();
        for (number, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}", width = *width))
                .collect();
            println!("| {} |", cells.join(" | "));
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                println!("|-{}-|", rules.join("-|-"));
            }
        }
    }
}

/// What is asked for, beside what came out. Nothing fails here: whoever reads it decides.
pub struct Bars(Table);

impl Bars {
    pub fn new() -> Self {
        Self(Table::new(&["bar", "asked", "measured", ""]))
    }

    pub fn at_least(&mut self, what: &str, bound: f64, measured: f64) {
        self.add(what, format!("≥ {bound}"), measured, measured >= bound);
    }

    pub fn at_most(&mut self, what: &str, bound: f64, measured: f64) {
        self.add(what, format!("≤ {bound}"), measured, measured <= bound);
    }

    fn add(&mut self, what: &str, asked: String, measured: f64, met: bool) {
        let verdict = if met { "ok" } else { "**missed**" };
        self.0.row(vec![what.to_owned(), asked, figure(measured), verdict.to_owned()]);
    }

    pub fn print(&self) {
        println!();
        self.0.print();
    }
}
