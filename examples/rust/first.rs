//! The first program in Rust: every rank gives its number, and all have the sum.
//!
//!     make lib
//!     rustc -O -L python/weft -l dylib=weft -C link-arg=-Wl,-rpath,$PWD/python/weft -o first examples/rust/first.rs
//!     weft run -n 4 -- ./first
//!
//! What is declared here is what bindgen makes of weft.h.
use std::ffi::{c_char, c_int, c_void, CStr};

#[repr(C)]
struct Error {
    code: i32,
    rank: i32,
    operation: u64,
    culprit_count: i32,
    culprits: [i32; 64],
    reserved: [i32; 11],
    text: [c_char; 3776],
}

const FLOAT64: u32 = 0x4002;
const SUM: c_int = 1;

extern "C" {
    fn weft_join(cfg: *const c_void, c: *mut i64, e: *mut Error) -> c_int;
    fn weft_rank(c: i64) -> c_int;
    fn weft_size(c: i64) -> c_int;
    fn weft_all_reduce(c: i64, dst: *mut c_void, src: *const c_void, count: i64, t: u32, op: c_int, e: *mut Error) -> c_int;
    fn weft_barrier(c: i64, e: *mut Error) -> c_int;
    fn weft_close(c: i64, e: *mut Error) -> c_int;
}

fn main() {
    let mut e: Box<Error> = unsafe { Box::new(std::mem::zeroed()) };
    let mut c = 0i64;
    let mut x = [0f64; 2];
    unsafe {
        let check = |code: c_int, e: &Error| {
            if code != 0 {
                eprintln!("code {}, {} ranks at fault: {}", code, e.culprit_count, CStr::from_ptr(e.text.as_ptr()).to_string_lossy());
                std::process::exit(1);
            }
        };
        check(weft_join(std::ptr::null(), &mut c, &mut *e), &e);
        x[0] = weft_rank(c) as f64;
        let p = x.as_mut_ptr() as *mut c_void;
        check(weft_all_reduce(c, p, p, x.len() as i64, FLOAT64, SUM, &mut *e), &e);
        println!("rank {} of {}: the sum of all ranks' numbers is {}", weft_rank(c), weft_size(c), x[0]);
        check(weft_barrier(c, &mut *e), &e);
        check(weft_close(c, &mut *e), &e);
    }
    let _ = (e.code, e.rank, e.operation, e.culprits[0], e.reserved[0]);
}
