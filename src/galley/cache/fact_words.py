"""Words that change what a question asks, for :mod:`galley.cache.facts`."""

from typing import Final


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_NAMES_OF_NUMBERS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
_TENS: Final = "thirty forty fifty sixty seventy eighty ninety"
_ORDINALS: Final = "first second third fourth fifth sixth seventh eighth ninth tenth"
_MONTHS: Final = (
    "january february march april may june july august september october november december"
)

NUMBERS: Final[dict[str, str]] = {
    **{word: str(n) for n, word in enumerate(_NAMES_OF_NUMBERS.split())},
    **{word: str(n) for n, word in enumerate(_ORDINALS.split(), 1)},
    **{word: str(10 * n) for n, word in enumerate(_TENS.split(), 3)},
    **{"hundred": "100", "thousand": "1000", "million": "1000000", "billion": "1000000000"},
    **{"half": "0.5", "once": "1", "twice": "2", "double": "2", "triple": "3", "dozen": "12"},
}
"""Word -> its number."""

MONTHS: Final[dict[str, str]] = {
    **{word: str(n) for n, word in enumerate(_MONTHS.split(), 1)},
    **{word[:3]: str(n) for n, word in enumerate(_MONTHS.split(), 1) if word != "may"},
    "sept": "9",
}
"""Month -> its number. "May" is one only where it has a capital letter inside a sentence."""

_UNITS: Final = """
metre meter metres meters m
kilometre kilometer kilometres kilometers km kms
centimetre centimeter centimetres centimeters cm
millimetre millimeter millimetres millimeters mm
mile miles mi
foot feet ft
inch inches
yard yards
gram grams g gramme grammes
kilogram kilograms kg kilo kilos kgs
pound pounds lb lbs £ gbp quid
ounce ounces oz
tonne tonnes ton tons
litre liter litres liters l
millilitre milliliter ml
gallon gallons gal
second seconds sec secs
minute minutes min mins
hour hours hr hrs
day days daily
week weeks weekly
month months monthly
year years yearly annual annually
am a.m
pm p.m
celsius °c
fahrenheit °f
kelvin
percent % percentage per-cent
dollar dollars $ usd
euro euros € eur
yen ¥ jpy
rupee rupees ₹ inr
yuan rmb cny
cent cents
byte bytes
kilobyte kilobytes kb
megabyte megabytes mb
gigabyte gigabytes gb
terabyte terabytes tb
bit bits
watt watts w
kilowatt kilowatts kw
volt volts v
amp amps ampere amperes
hertz hz
megahertz mhz
gigahertz ghz
calorie calories kcal
degree degrees °
"""

UNITS: Final[dict[str, str]] = {
    name: line.split()[0] for line in _UNITS.strip().splitlines() for name in line.split()
}
"""Unit -> the name under which it is compared."""

NEEDS_NUMBER: Final = words("m mi g l v w am min sec pound pounds second seconds")
"""Units that are other words too, and count only after a number."""

DATES: Final = words(
    "monday tuesday wednesday thursday friday saturday sunday today tomorrow yesterday tonight now "
    "morning afternoon evening night noon midnight weekend weekday spring summer autumn winter "
    "christmas easter"
)

NEGATIONS: Final = words(
    "not no never none nobody nothing nowhere neither nor without cannot except excluding unless hardly "
    "non lack lacks lacking avoid avoids avoiding fail fails failed failing refuse refuses refused "
    "stop stops stopped "
    # Other languages; a word that is none in the text's language makes a miss, not a false hit.
    "nicht kein keine keinen keiner nie niemals ohne ne pas jamais sans nunca sin non mai senza não sem "
    "niet geen nooit zonder нет не без"
)
NEGATING_LETTERS: Final = "不没沒無无非未別别勿"
"""Characters that negate in Chinese and Japanese, which have no spaces between words."""

OF_GERMAN: Final = words(
    "und oder ist sind nicht der eine einen das für auf sie wir ihre ihren zum zur wird werden kein keine"
)
"""Words by which German is recognized, in which each noun has a capital letter."""

_OPPOSITES: Final = """
add/subtract plus/times minus/times plus/divided minus/divided times/divided sum/product
sum/difference squared/cubed since/until
enable/disable open/close start/stop begin/end increase/decrease raise/lower raise/reduce
increase/reduce add/remove add/delete create/delete install/uninstall buy/sell lend/borrow
send/receive import/export upload/download push/pull encode/decode encrypt/decrypt
compress/decompress lock/unlock connect/disconnect subscribe/unsubscribe activate/deactivate
activate/cancel join/leave accept/reject accept/decline allow/block allow/forbid allow/prevent
show/hide win/lose gain/lose pass/fail before/after above/below over/under inside/outside up/down
upgrade/downgrade in/out on/off left/right front/back top/bottom first/last last/next
previous/next earliest/latest oldest/newest old/new more/less more/fewer most/least best/worst
better/worse good/bad pros/cons advantage/disadvantage benefit/risk benefit/drawback
maximum/minimum max/min highest/lowest high/low longest/shortest long/short largest/smallest
big/small large/small biggest/smallest fastest/slowest fast/slow early/late cheap/expensive
cheapest/expensive hot/cold warm/cool safe/dangerous legal/illegal true/false right/wrong
same/different public/private input/output male/female man/woman men/women boy/girl husband/wife
mother/father son/daughter brother/sister his/her he/she him/her north/south east/west
morning/evening morning/night day/night incoming/outgoing inbound/outbound arrival/departure
arrive/depart arrive/leave entry/exit deposit/withdraw deposit/withdrawal credit/debit
income/expense profit/loss lossless/lossy synchronous/asynchronous vertical/horizontal row/column
parent/child client/server employer/employee teacher/student landlord/tenant buyer/seller
lender/borrower married/single with/without always/never all/some always/sometimes everyone/nobody
both/either approve/deny approve/reject grant/revoke grant/deny ask/answer attack/defend
ascend/descend appear/disappear bigger/smaller larger/smaller higher/lower longer/shorter
faster/slower older/younger older/newer cheaper/dearer cheaper/pricier boil/freeze build/destroy
charge/discharge charge/refund come/go discount/surcharge discount/markup employ/dismiss hire/fire
expand/collapse expand/shrink extend/shorten extend/cancel find/lose forget/remember
freeze/unfreeze freeze/thaw give/take grow/shrink heat/cool include/omit include/exclude
inhale/exhale keep/return keep/discard keep/delete leave/stay leave/return lead/follow
like/dislike like/hate live/die love/hate merge/split mute/unmute multiply/divide odd/even
offer/demand own/rent pause/resume pay/earn permit/forbid plus/minus pin/unpin promote/demote
protect/expose publish/retract question/answer read/write renew/cancel repair/break save/delete
save/spend schedule/cancel sit/stand sleep/wake sunrise/sunset supply/demand tighten/loosen
trust/distrust upper/lower vacant/occupied wax/wane wet/dry winner/loser wide/narrow heavy/light
strong/weak full/empty rich/poor young/old positive/negative major/minor domestic/international
temporary/permanent manual/automatic optional/required mandatory/optional
"""

OPPOSITES: Final = tuple(
    (pair.partition("/")[0], pair.partition("/")[2]) for pair in _OPPOSITES.split()
)
"""Pairs of words of which a text with one does not ask what a text with the other asks."""

_ACTIONS: Final = """
reset recover recovery restore
unlock unblock unfreeze
lock block freeze frozen suspend
change modify edit update amend alter adjust
change exchange convert swap
exchange swap replace replacement
verify verification confirm confirmation validate authenticate
register registration enroll enrol enrollment
delete deletion remove removal erase
delete close closure cancel cancellation terminate termination
deactivate deactivation disable
activate activation enable
install installation
uninstall
upgrade
downgrade
renew renewal extend extension
download
upload
import
export
share
copy duplicate clone
scan
rename
move reschedule postpone
move transfer
move removal
withdraw withdrawn withdrew withdrawal
return refund reimburse reimbursement
repair fix mend
rent lease
borrow
lend lent
track trace
connect pair
disconnect
configure
encrypt
decrypt
merge combine
split divide
translate
donate
"""

ACTIONS: Final = tuple(words(line) for line in _ACTIONS.strip().splitlines())
"""Groups of words for actions; words of one group may mean the same.

A word may be in several groups. Left out are words that are as often names of things (order, charge,
report), and those of which many mean the same in some sentence (add, pay, send, receive).
"""

_THINGS: Final = """
account profile login membership
password passcode passphrase login
pin
username
email e-mail mail
card
order parcel package shipment delivery
subscription membership plan contract
invoice bill receipt
appointment reservation
photo picture image
video
"""

THINGS: Final = tuple(words(line) for line in _THINGS.strip().splitlines())
"""Groups of words for the objects of actions; words of one group may mean the same."""

PREFIXES: Final = ("un", "in", "im", "ir", "il", "dis", "non", "non-", "de", "mis", "anti", "anti-")
"""Beginnings that make a word's opposite."""

QUESTION_KINDS: Final[dict[str, str]] = {
    "when": "when",
    "where": "where",
    "who": "who",
    "whom": "who",
    "whose": "who",
    "why": "why",
    "which": "which",
}

DIRECTIONS: Final[dict[str, str]] = {
    "from": "from",
    "to": "to",
    "into": "to",
    "onto": "to",
    "towards": "to",
    "by": "by",
    "than": "than",
    "before": "before",
    "after": "after",
    "for": "for",
    "against": "against",
    "over": "over",
    "under": "under",
    "instead": "instead",
    "versus": "than",
    "vs": "than",
    "with": "with",
    "without": "without",
    "as": "as",
    "of": "of",
    "behind": "behind",
    "because": "because",
    "in": "in",
    "on": "on",
    "at": "at",
}
"""Word before another -> the role that it gives it."""

CONTRARY: Final = frozenset(
    {
        ("from", "to"),
        ("before", "after"),
        ("with", "without"),
        ("over", "under"),
        ("for", "against"),
    }
)
"""Roles of which a word cannot have one in each of two texts that mean the same."""

FUNCTION_WORDS: Final = words(
    "a an the this that these those i me my mine we us our you your yours he him his she her hers it its "
    "they them their is are was were be been being am do does did doing done have has had having can "
    "could will would shall should may might must and or but so of in on at to from by for with about as "
    "into through during before after above below between over under again then once here there when "
    "where why how what which who whom whose all any both each few more most other some such only own "
    "same than too very just if because while please tell explain hi hello hey thanks thank want need "
    "like know get got let let's lets im i'm i've i'd what's who's it's there's that's ok okay "
    "way ways really actually also"
)
"""Words that are neither names nor take part in the comparison of roles."""
