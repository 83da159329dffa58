"""Words that announce names, and words that look like names but are not."""

from typing import Final

from galley.redact.spans import words

TITLES: Final = frozenset(
    words("mr mrs ms miss mister missus mx dr doctor professor prof sir madam")
)
BEFORE: Final = frozenset(
    {
        "my name", "my name's", "name", "name's", "i am", "i'm", "this is", "it's", "speaking with",
        "speaking to", "talking to", "talk to", "spoke with", "spoke to", "speak to", "speak with",
        "name of", "under the name", "under", "called", "named", "hi", "hello", "hey", "thank you",
        "thanks", "dear", "account holder", "cardholder", "patient", "customer", "caller",
        "husband", "wife", "son", "daughter", "mother", "father", "brother", "sister",
        "regards", "sincerely", "goodbye", "bye",
        "first name", "last name", "surname", "for", "from", "with", "ask", "call me", "calls me",
        "people call me", "signed", "colleague", "manager", "boss", "friend", "neighbor", "agent",
        "kid", "child", "partner", "assistant", "nurse", "cousin", "uncle", "aunt", "grandmother",
        "grandfather", "beneficiary", "nephew", "niece",
    }
)  # fmt: skip
WEAK: Final = frozenset(
    {"i am", "i'm", "this is", "it's", "called", "under", "for", "from", "with", "ask", "name of"}
)
"""Followed by other words as often as by names, so a name needs two capitalized words here."""

SAYS_WHO: Final = frozenset(
    {"my name", "my name's", "name's", "first name", "last name", "surname"}
)
"""What follows is a name, whatever the list says, even in a transcript without capitals."""

AFTER: Final = ("speaking", "here", "calling", "on the line", "is my name")
NOT_NAMES: Final = frozenset(
    words(
        "i i'm i'll i've i'd the a an and but or so well okay ok yes no sir madam please thank thanks "
        "hello hi hey dear monday tuesday wednesday thursday friday saturday sunday january february "
        "march april may june july august september october november december english spanish french "
        "german american british mastercard visa amex paypal google amazon microsoft apple customer "
        "support service team good morning afternoon evening you your my our we they it this that "
        "there here what how when where can cannot could would will just let not very sorry sure calling "
        "see speaking street avenue road lane drive inc llc ltd corp company bank"
    )
)
CONTRACTIONS: Final = ("n't", "'ve", "'re", "'ll", "'d", "'m")
PARTICLES: Final = frozenset(words("de da van von der den la le bin al o di del st mc ter ten dos"))

PLACES: Final = frozenset(
    words(
        "alabama alaska arizona arkansas california carolina colorado connecticut dakota delaware "
        "florida georgia hawaii idaho illinois indiana iowa kansas kentucky louisiana maine maryland "
        "massachusetts michigan minnesota mississippi missouri montana nebraska nevada hampshire "
        "jersey mexico york ohio oklahoma oregon pennsylvania tennessee texas utah vermont virginia "
        "washington wisconsin wyoming america england scotland wales ireland london paris rome milan "
        "berlin vienna sydney melbourne perth adelaide toronto montreal ottawa vancouver calgary "
        "boston chicago houston dallas austin denver phoenix memphis orlando atlanta charlotte "
        "savannah jackson lincoln madison cleveland columbus cincinnati brooklyn manhattan queens "
        "lancaster chester york durham lincoln oxford cambridge bristol dover kent essex sussex "
        "jordan israel lebanon kenya cuba china india korea malta cyprus chad georgia holland france "
        "germany spain italy troy salem trenton camden asia europe florence victoria aurora verona "
        "vegas angeles francisco diego antonio jose juan juarez odessa lima santiago afghanistan "
        "albania algeria andorra angola arabia argentina armenia aruba australia austria azerbaijan "
        "bahamas bahrain bangladesh barbados belarus belgium belize benin bermuda bhutan bolivia "
        "bosnia botswana brazil brunei bulgaria burkina burundi cambodia cameroon canada chile "
        "colombia congo costa croatia czechia denmark djibouti dominica dominican ecuador egypt "
        "eritrea estonia eswatini ethiopia faso fiji finland gabon gambia ghana gibraltar greece "
        "greenland grenada guam guatemala guernsey guinea guyana haiti herzegovina honduras hungary "
        "iceland indonesia iran iraq jamaica japan kazakhstan kiribati kosovo kuwait kyrgyz "
        "kyrgyzstan lanka laos latvia lesotho leste liberia libya liechtenstein lithuania luxembourg "
        "macau macedonia madagascar malawi malaysia maldives mali martinique mauritania mauritius "
        "micronesia moldova monaco mongolia montenegro montserrat morocco mozambique myanmar namibia "
        "nauru nepal netherlands nicaragua niger nigeria niue norway oman pakistan palau palestine "
        "panama papua paraguay peru philippines poland portugal qatar reunion rica rico romania "
        "russia rwanda salvador samoa senegal serbia seychelles singapore slovakia slovenia somalia "
        "sri sudan suriname swaziland sweden switzerland syria taiwan tajikistan tanzania thailand "
        "timor togo tonga trinidad tobago tunisia turkey turkmenistan tuvalu uganda ukraine uruguay "
        "uzbekistan vanuatu venezuela vietnam yemen zambia zimbabwe zealand"
    )
)
"""Towns, states and countries; alone, and beside an unknown word, they are taken for places."""
OF_PLACES: Final = frozenset(
    words(
        "new north south east west port lake fort mount mt saint st san santa los las el upper lower"
    )
)
NO_PERSON: Final = frozenset(
    words(
        "street st avenue ave road rd lane drive boulevard square station airport university college "
        "school hospital clinic church cathedral bank hotel county city town park museum theatre "
        "theater stadium center centre institute foundation award prize company group inc llc ltd "
        "corp corporation plc gmbh brothers sons partners associates holdings industries systems "
        "motors airlines insurance financial investments stores club bridge river lake valley hills "
        "island islands beach house hall tower building day effect law act test limited sons court "
        "gardens bancorp capital fund index trust ag sa nv se emirates"
    )
)
"""Last words of places and firms, of which many are named after people."""
FIRM_FORMS: Final = frozenset(words("plc gmbh"))
"""Those that may be in lower case."""
STATES: Final = frozenset(
    words(
        "AL AK AZ AR CA CO CT DE DC FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ "
        "NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY"
    )
)
WHERE: Final = frozenset(
    words("in at near to from of into around via city town visit visiting , through")
)
"""What comes before a town more often than before a person, unless a phrase announces a name."""
DOES: Final = frozenset(
    words(
        "is was were has had said says told asked called calls wants wanted will would did does began "
        "wrote writes came went gave sent took lives lived works worked"
    )
)
"""What people do: an unknown word at the beginning of a sentence is a name if one of these follows."""
TOWNS: Final = (
    "ville", "town", "burgh", "borough", "bury", "shire", "mouth", "chester", "furt", "fort", "haven",
    "side", "stad", "port", "view",
)  # fmt: skip
DETERMINERS: Final = frozenset(words("the a an this that these those our your every each"))
ENDS: Final = frozenset('.?!:\n"\u201c\u201d>;')
"""The token after one of these begins a sentence, and has a capital whatever it is."""
SPELLING: Final = frozenset(words("spell spelled spelt spelling spells name surname"))
