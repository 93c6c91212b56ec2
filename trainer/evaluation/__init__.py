"""How good the drafter is: teacher-forced, by decoding, while it trains and when it is finished."""
